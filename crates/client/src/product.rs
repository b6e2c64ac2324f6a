//! A product whose result is sent to this process, and its plan.

use crate::unchanged::long_enough;
use crate::{Client, ClientError};
use bramble_arrays::LossRetries;
use bramble_matrix::{DType, Matrix, Output, Shape};
use bramble_primary::LocalFuture;
pub use bramble_primary::Stop;
use bramble_primary::{Finished, PrimaryError, ProductOperand, ProductPlan, Request, prepared};
use std::rc::Rc;
use std::time::Instant;

/// C = αAB + βD, with operands of one type and of shapes that fit.
pub struct ClientProduct {
    /// α.
    pub alpha: f64,
    /// A, which this process can read.
    pub a: ProductOperand,
    /// B, which this process can read.
    pub b: ProductOperand,
    /// β and D.
    pub plus: Option<(f64, Matrix)>,
}

impl ClientProduct {
    /// The shape of C.
    pub fn shape(&self) -> Shape {
        Shape::new(self.a.matrix.shape().rows, self.b.matrix.shape().cols)
    }

    /// The element type of C.
    pub fn dtype(&self) -> DType {
        self.a.matrix.dtype()
    }
}

impl Client {
    /// Computes a product into the output that `output` opens. `began`: when the work on it began;
    /// `stop` ends it with an error, after which the cluster serves other calls. A C that does not pass its
    /// check is an error, and discarded.
    pub fn multiply<'f>(
        &'f mut self,
        product: &'f ClientProduct,
        output: &'f dyn Fn(Shape, DType) -> Result<Output, ClientError>,
        (began, stop): (Instant, &'f Rc<Stop>),
    ) -> LocalFuture<'f, Result<Finished, ClientError>> {
        Box::pin(async move {
            let plus = product.plus.as_ref().map(|(_, matrix)| matrix);
            long_enough([&product.a.matrix, &product.b.matrix].into_iter().chain(plus))?;
            let mut retries = LossRetries::default();
            let finished = loop {
                let request = self.request(product, output, (began, stop))?;
                let watch = self.display();
                let request = prepared(request, &watch).await?;
                let result = self.cluster.run(request, &watch).await;
                watch.done();
                match result {
                    Err(PrimaryError::PartLost(why)) => self.restore(&why, &mut retries).await?,
                    result => break result?,
                }
            };
            let verdict = &finished.report.check.verify.verdict;
            if !verdict.passed {
                let text =
                    verdict.fault.as_ref().map_or_else(|| verdict.method.clone(), |fault| fault.text.clone());
                finished.sealed.discard();
                return Err(ClientError::Wrong(format!("the result is wrong: {text}")));
            }
            Ok(finished)
        })
    }

    /// The plan that `multiply` would carry out now. Nothing is computed; the output is only measured.
    pub fn plan<'f>(
        &'f mut self,
        product: &'f ClientProduct,
        output: &'f dyn Fn(Shape, DType) -> Result<Output, ClientError>,
    ) -> LocalFuture<'f, Result<ProductPlan, ClientError>> {
        Box::pin(async move {
            let mut retries = LossRetries::default();
            loop {
                let request = self.request(product, output, (Instant::now(), &Rc::default()))?;
                let watch = self.display();
                let request = prepared(request, &watch).await?;
                let result = self.cluster.plan(request, &watch).await;
                watch.done();
                match result {
                    Err(PrimaryError::PartLost(why)) => self.restore(&why, &mut retries).await?,
                    result => return Ok(result?),
                }
            }
        })
    }

    /// What the primary is asked for.
    fn request(
        &mut self,
        product: &ClientProduct,
        output: &dyn Fn(Shape, DType) -> Result<Output, ClientError>,
        (began, stop): (Instant, &Rc<Stop>),
    ) -> Result<Request, ClientError> {
        let (shape, dtype) = (product.shape(), product.dtype());
        let (m, k, n) = (shape.rows, product.a.matrix.shape().cols, shape.cols);
        let plus = product.plus.clone();
        Ok(Request {
            a: product.a.clone(),
            b: product.b.clone(),
            alpha: product.alpha,
            beta: plus.as_ref().map_or(0.0, |(beta, _)| *beta),
            old_c: plus.map(|(_, c)| c),
            output: output(shape, dtype)?,
            cut: self.options.cut.cut([m, k, n], dtype),
            kernel: self.kernels.name(dtype, 2.0 * m as f64 * k as f64 * n as f64)?,
            wish: self.options.cut.wish(self.is_local),
            instead: None,
            sessions: self.sessions()?,
            check: self.check()?,
            began,
            log: None,
            journal: None,
            stop: stop.clone(),
        })
    }
}
