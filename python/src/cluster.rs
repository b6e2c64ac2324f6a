//! `_bramble.Cluster`: the calls of an open cluster.
//!
//! Place in the flow: the package's `Cluster` and `DistArray` check types and shapes and call these; each call runs on the
//! cluster's thread (`event_loop.rs`).
//!
//! Invariant: every call returns its result with its report, as JSON.

use crate::event_loop::EventLoop;
use crate::factors::{FactoredOnWorkers, factor_on_workers};
use crate::lu::LuFailure;
use crate::memory::Memory;
use crate::operand::{Placed, matrix, operand};
use crate::report;
use crate::system::{SystemSolved, solve_on_workers};
use bramble_client::{Client, ClientError, ClientProduct, NewArray, Stop, UNNAMED};
use bramble_matrix::{DType, Output, Rect, Reduction, Shape, Span};
use bramble_plan::{Placement, ShardAxis, ShardUnits};
use bramble_primary::{MakeSubject, PrimaryError, ProductOperand, ReduceSubject};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Instant;

/// An open cluster.
#[pyclass(frozen, name = "Cluster")]
pub(crate) struct ClusterHandle {
    home: Arc<EventLoop>,
}

/// How a matrix is spread: None (automatic), or the axis (None: a whole copy at each machine) and the units (None: by speed).
type PlacementArg = Option<(Option<u8>, Option<Vec<u64>>)>;

#[pymethods]
impl ClusterHandle {
    /// Opens the cluster that the words of a command line name. `show` is called with the progress of calls that take long.
    #[new]
    fn new(
        py: Python<'_>,
        words: Vec<String>,
        key: Option<String>,
        show: Option<Py<PyAny>>,
    ) -> PyResult<Self> {
        Ok(Self { home: Arc::new(EventLoop::open(py, words, key, show)?) })
    }

    /// The machines, with their speeds for elements of that type, as JSON.
    fn nodes(&self, py: Python<'_>, dtype: &str) -> PyResult<String> {
        let unknown = || PyValueError::new_err(format!("{dtype}: no such element type"));
        let dtype = DType::parse(dtype).ok_or_else(unknown)?;
        self.home.call(py, move |client, _| {
            Box::pin(async move { Ok(report::nodes(&client.nodes(dtype).await?)) })
        })
    }

    /// X with A X = B, and the report.
    fn solve(
        &self,
        py: Python<'_>,
        a: &Bound<'_, PyAny>,
        b: &Bound<'_, PyAny>,
        threads: usize,
        survive: usize,
    ) -> PyResult<SystemSolved> {
        let (a, b) = (operand(&self.home, a)?.matrix, operand(&self.home, b)?.matrix);
        let solved = self
            .home
            .call(py, move |client, _| Box::pin(solve_on_workers(client, (a, b), threads.max(1), survive)))?;
        solved.map_err(|why| LuFailure::from(why).raised(py))
    }

    /// The factors of A, by the workers.
    fn lu(
        &self,
        py: Python<'_>,
        a: &Bound<'_, PyAny>,
        threads: usize,
        survive: usize,
    ) -> PyResult<FactoredOnWorkers> {
        let a = operand(&self.home, a)?.matrix;
        let factored = self
            .home
            .call(py, move |client, _| Box::pin(factor_on_workers(client, a, threads.max(1), survive)))?;
        factored.map_err(|why| why.raised(py))
    }

    /// Places a matrix.
    fn put(
        &self,
        py: Python<'_>,
        source: &Bound<'_, PyAny>,
        placement: PlacementArg,
    ) -> PyResult<(Placed, String)> {
        let (source, placement) = (matrix(source)?, placement_of(placement)?);
        let home = self.home.clone();
        self.home.call(py, move |client, _| {
            Box::pin(async move {
                let (array, put) = client.put(source.clone(), placement).await?;
                Ok((Placed::new(array, source, home), report::put(&put)))
            })
        })
    }

    /// AB, kept at the machines.
    fn make_product(
        &self,
        py: Python<'_>,
        a: &Bound<'_, PyAny>,
        b: &Bound<'_, PyAny>,
        placement: PlacementArg,
    ) -> PyResult<(Placed, String)> {
        let (a, b) = (operand(&self.home, a)?, operand(&self.home, b)?);
        self.make(py, MakeSubject::Product { alpha: 1.0, a, b, plus: None }, placement)
    }

    /// αX, or αX + βY, kept at the machines.
    fn make_sum(
        &self,
        py: Python<'_>,
        alpha: f64,
        x: &Bound<'_, PyAny>,
        beta: f64,
        y: Option<&Bound<'_, PyAny>>,
        placement: PlacementArg,
    ) -> PyResult<(Placed, String)> {
        let x = (alpha, operand(&self.home, x)?);
        let y = y.map(|y| Ok::<_, PyErr>((beta, operand(&self.home, y)?))).transpose()?;
        self.make(py, MakeSubject::Sum { x, y }, placement)
    }

    /// AB, sent to this process.
    fn multiply(
        &self,
        py: Python<'_>,
        a: &Bound<'_, PyAny>,
        b: &Bound<'_, PyAny>,
    ) -> PyResult<(Memory, String)> {
        let began = Instant::now();
        let (a, b) = (operand(&self.home, a)?, operand(&self.home, b)?);
        self.home.call(py, move |client, stop| Box::pin(multiplied(client, a, b, (began, stop))))
    }

    /// The plan of `multiply` with these operands, as JSON.
    fn plan(&self, py: Python<'_>, a: &Bound<'_, PyAny>, b: &Bound<'_, PyAny>) -> PyResult<String> {
        let (a, b) = (operand(&self.home, a)?, operand(&self.home, b)?);
        self.home.call(py, move |client, _| Box::pin(planned(client, a, b)))
    }

    /// The elements of some rows and columns of a placed matrix, which have to be in it.
    fn fetch(
        &self,
        py: Python<'_>,
        placed: &Bound<'_, Placed>,
        rows: (u64, u64),
        cols: (u64, u64),
    ) -> PyResult<Memory> {
        if rows.0 > rows.1 || cols.0 > cols.1 {
            return Err(PyValueError::new_err(
                "rows and columns go from the first to the one after the last",
            ));
        }
        let rect = Rect::new(Span::new(rows.0, rows.1), Span::new(cols.0, cols.1));
        let of = operand(&self.home, (placed, false).into_pyobject(py)?.as_any())?;
        let array = placed.get().array;
        self.home.call(py, move |client, _| {
            Box::pin(async move {
                drop(of);
                Ok(Memory::of(client.fetch(array, Some(rect), &in_memory).await?)?)
            })
        })
    }

    /// The machines reduce a placed matrix, or a product with one (`b` is given): `kind` with its count, for topk.
    fn reduce(
        &self,
        py: Python<'_>,
        kind: &str,
        count: u64,
        a: &Bound<'_, PyAny>,
        b: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<(Vec<Memory>, String)> {
        let reduction = reduction_of(kind, count)?;
        let a = operand(&self.home, a)?;
        let subject = match b {
            None => ReduceSubject::Matrix(a),
            Some(b) => ReduceSubject::Product { alpha: 1.0, a, b: operand(&self.home, b)? },
        };
        self.home.call(py, move |client, _| {
            Box::pin(async move {
                let (results, report) = client.reduce(reduction, subject).await?;
                Ok((results.into_iter().map(Memory::of_reduced).collect(), report::reduced(&report)))
            })
        })
    }

    /// Forgets a placed matrix, and waits until the machines have.
    fn free(&self, py: Python<'_>, placed: &Bound<'_, Placed>) -> PyResult<()> {
        let placed = placed.get();
        if self.home.is_closed() || !placed.forget() {
            return Ok(());
        }
        let array = placed.array;
        self.home.call(py, move |client, _| Box::pin(client.free(array)))
    }

    /// Raises what a call with the matrix would: it was freed, or the cluster is not there any more.
    fn check(&self, py: Python<'_>, placed: &Bound<'_, Placed>) -> PyResult<()> {
        placed.get().check(&self.home)?;
        self.home.check(py)
    }

    /// Closes the cluster: says goodbye to all machines; local workers end.
    fn close(&self, py: Python<'_>) -> PyResult<()> {
        self.home.close(py)
    }

    /// Whether it was closed.
    #[getter]
    fn closed(&self) -> bool {
        self.home.is_closed()
    }
}

impl ClusterHandle {
    fn make(
        &self,
        py: Python<'_>,
        subject: MakeSubject,
        placement: PlacementArg,
    ) -> PyResult<(Placed, String)> {
        let (placement, home) = (placement_of(placement)?, self.home.clone());
        self.home.call(py, move |client, _| {
            Box::pin(async move {
                let NewArray { array, operand, report } = client.make(UNNAMED, subject, placement).await?;
                Ok((Placed::new(array, operand.matrix, home), report::made(&report)))
            })
        })
    }
}

/// A product that is sent to this process. If only the machines have an operand, they make the product first.
async fn multiplied(
    client: &mut Client,
    a: ProductOperand,
    b: ProductOperand,
    (began, stop): (Instant, Rc<Stop>),
) -> Result<(Memory, String), ClientError> {
    if a.matrix.is_remote() || b.matrix.is_remote() {
        let subject = MakeSubject::Product { alpha: 1.0, a, b, plus: None };
        let (sealed, made) = client.make_and_fetch(subject, &in_memory).await?;
        return Ok((Memory::of(sealed)?, report::made(&made)));
    }
    let product = ClientProduct { alpha: 1.0, a, b, plus: None };
    let finished = client.multiply(&product, &in_memory, (began, &stop)).await?;
    let report = report::multiplied(&finished.report, began.elapsed().as_secs_f64());
    Ok((Memory::of(finished.sealed)?, report))
}

/// The plan of a product that is sent to this process.
async fn planned(client: &mut Client, a: ProductOperand, b: ProductOperand) -> Result<String, ClientError> {
    if a.matrix.is_remote() || b.matrix.is_remote() {
        let why = "plan: an operand was made at the workers, which compute products with it where its parts lie; only arrays, \
                   files, and matrices that were placed with put can be planned";
        return Err(PrimaryError::Operands(why.to_owned()).into());
    }
    Ok(report::plan(client.plan(&ClientProduct { alpha: 1.0, a, b, plus: None }, &in_memory).await?))
}

fn in_memory(shape: Shape, dtype: DType) -> Result<Output, ClientError> {
    Ok(Output::anonymous(shape, dtype)?)
}

fn placement_of(placement: PlacementArg) -> PyResult<Option<Placement>> {
    Ok(match placement {
        None => None,
        Some((None, _)) => Some(Placement::Replicate),
        Some((Some(axis), units)) => {
            let axis = match axis {
                0 => ShardAxis::Rows,
                1 => ShardAxis::Cols,
                other => {
                    return Err(PyValueError::new_err(format!("axis {other}: a matrix has axes 0 and 1")));
                }
            };
            Some(Placement::Shard(axis, units.map_or(ShardUnits::BySpeed, ShardUnits::Stated)))
        }
    })
}

fn reduction_of(kind: &str, count: u64) -> PyResult<Reduction> {
    Ok(match kind {
        "rowsum" => Reduction::RowSum,
        "colsum" => Reduction::ColSum,
        "norm" => Reduction::Norm,
        "max" => Reduction::Max,
        "min" => Reduction::Min,
        "topk" => Reduction::TopK(count),
        other => return Err(PyValueError::new_err(format!("{other}: no such reduction"))),
    })
}
