//! `bramble nearest`: the rows of X that are most alike, from C = X Xᵀ.
//!
//! Place in the flow: after `multiply` has written C. Element (i, j) of C is the inner product of rows i and j of X;
//! divided by the square roots of elements (i, i) and (j, j) it is the cosine of the angle between them.
//!
//! Deliberately absent: the check that C is such a product; only its shape is checked.

use crate::args::NearestArgs;
use bramble_matrix::{Buffer, DType, Matrix, Rect, Span};
use bramble_report::exit::{Exit, Failure};
use std::collections::BTreeMap;
use std::path::Path;

/// Larger matrices are examined only for given rows.
const ROWS_MAX: u64 = 4096;
/// Rows printed for each given row.
const NEAREST: usize = 5;
/// With more distinct labels than this, labels are names of rows and not classes.
const CLASSES_MAX: usize = 64;

/// Runs the verb.
pub(crate) fn run(args: &NearestArgs) -> Result<Exit, Failure> {
    let c = Matrix::open(&args.c)?;
    let (rows, name) = (c.shape().rows, c.name());
    if rows != c.shape().cols {
        let shape = c.shape();
        return Err(Failure::failed(format!(
            "{name} is {shape}: a matrix times its own transpose is square"
        )));
    }
    let labels = args.labels.as_deref().map(|path| labels(path, rows)).transpose()?;
    for row in &args.rows {
        row_number(row, labels.as_deref(), rows as usize)?;
    }
    if args.rows.is_empty() && !(2..=ROWS_MAX).contains(&rows) {
        return Err(Failure::failed(format!(
            "{name} has {rows} rows: all pairs are compared for 2 to {ROWS_MAX} rows; name some with --rows"
        )));
    }
    let comparison = RowComparison { norms: norms(&c)?, labels, c: &c };
    let lines = match args.rows.is_empty() {
        true => comparison.alike()?,
        false => args.rows.iter().map(|name| comparison.nearest(name)).collect::<Result<_, _>>()?,
    };
    bramble_report::out(format!("{}\n", lines.join("\n")).as_bytes())
}

/// The row with this label or number.
fn row_number(name: &str, labels: Option<&[String]>, rows: usize) -> Result<usize, Failure> {
    let by_label = labels.and_then(|l| l.iter().position(|x| x == name));
    let by_number = name.parse::<usize>().ok().filter(|i| *i < rows);
    by_label
        .or(by_number)
        .ok_or_else(|| Failure::usage(format!("--rows {name}: no row has this number or label")))
}

/// The labels of the rows.
fn labels(path: &Path, rows: u64) -> Result<Vec<String>, Failure> {
    let name = path.display();
    let text =
        std::fs::read_to_string(path).map_err(|e| Failure::failed(format!("{name}: cannot be read: {e}")))?;
    let labels: Vec<String> = text.lines().map(str::to_owned).collect();
    if labels.len() as u64 != rows {
        return Err(Failure::failed(format!("{name}: it has {} lines for {rows} rows", labels.len())));
    }
    Ok(labels)
}

/// Row `i` of C as f64.
fn row(c: &Matrix, i: u64) -> Result<Vec<f64>, Failure> {
    let rect = Rect::new(Span::new(i, i + 1), Span::new(0, c.shape().cols));
    elements(c, rect)
}

fn elements(c: &Matrix, rect: Rect) -> Result<Vec<f64>, Failure> {
    let shape = rect.shape();
    let mut buffer = Buffer::zeroed((shape.rows * shape.cols) as usize * c.dtype().size_bytes())?;
    c.read_block(rect, buffer.bytes_mut())?;
    Ok(match c.dtype() {
        DType::F32 => buffer.elements::<f32>().iter().map(|x| f64::from(*x)).collect(),
        DType::F64 => buffer.elements::<f64>().to_vec(),
        DType::I32 => buffer.elements::<i32>().iter().map(|x| f64::from(*x)).collect(),
        DType::I64 => buffer.elements::<i64>().iter().map(|x| *x as f64).collect(),
    })
}

/// Lengths of the rows of X: square roots of C's diagonal.
fn norms(c: &Matrix) -> Result<Vec<f64>, Failure> {
    let mut norms = Vec::new();
    for i in 0..c.shape().rows {
        let one = Span::new(i, i + 1);
        norms.push(elements(c, Rect::new(one, one))?[0].sqrt());
    }
    Ok(norms)
}

/// The rows of X, compared by their cosines.
struct RowComparison<'a> {
    c: &'a Matrix,
    norms: Vec<f64>,
    labels: Option<Vec<String>>,
}

impl RowComparison<'_> {
    fn name(&self, i: usize) -> String {
        match &self.labels {
            Some(labels) => format!("{} (row {i})", labels[i]),
            None => format!("row {i}"),
        }
    }

    /// Cosines of row `i` with every row; 0 for rows of zeros.
    fn cosines(&self, i: usize) -> Result<Vec<f64>, Failure> {
        let row = row(self.c, i as u64)?;
        let scale = |x: f64, j: usize| {
            let product = self.norms[i] * self.norms[j];
            if product > 0.0 { x / product } else { 0.0 }
        };
        Ok(row.into_iter().enumerate().map(|(j, x)| scale(x, j)).collect())
    }

    fn nearest(&self, name: &str) -> Result<String, Failure> {
        let i = row_number(name, self.labels.as_deref(), self.norms.len())?;
        let cosines = self.cosines(i)?;
        let mut order: Vec<usize> = (0..cosines.len()).filter(|j| *j != i).collect();
        order.sort_by(|x, y| cosines[*y].total_cmp(&cosines[*x]));
        let list: Vec<String> = order
            .iter()
            .take(NEAREST)
            .map(|j| match &self.labels {
                Some(labels) => format!("{} {:.3}", labels[*j], cosines[*j]),
                None => format!("{j} {:.3}", cosines[*j]),
            })
            .collect();
        Ok(format!("nearest to {name}: {}", list.join(", ")))
    }

    /// The most similar pair of rows; with few labels, also the most similar labels and how well rows group by label.
    fn alike(&self) -> Result<Vec<String>, Failure> {
        let n = self.norms.len();
        let mut best = (0, 0, f64::NEG_INFINITY);
        let mut same_label = 0u64;
        let mut classes: BTreeMap<(&str, &str), (f64, u64)> = BTreeMap::new();
        for i in 0..n {
            let cosines = self.cosines(i)?;
            let nearest = (0..n).filter(|j| *j != i).max_by(|x, y| cosines[*x].total_cmp(&cosines[*y]));
            let Some(nearest) = nearest else { continue };
            if cosines[nearest] > best.2 {
                best = (i, nearest, cosines[nearest]);
            }
            let Some(labels) = &self.labels else { continue };
            same_label += u64::from(labels[i] == labels[nearest]);
            for (j, cosine) in cosines.iter().enumerate().take(i) {
                let (x, y) = (labels[i].as_str(), labels[j].as_str());
                let entry = classes.entry((x.min(y), x.max(y))).or_default();
                *entry = (entry.0 + cosine, entry.1 + 1);
            }
        }
        let (i, j, cosine) = best;
        let (low, high) = (i.min(j), i.max(j));
        let mut lines =
            vec![format!("alike     most: {} and {}, cosine {cosine:.4}", self.name(low), self.name(high))];
        lines.extend(self.grouping(&classes, same_label));
        Ok(lines)
    }

    fn grouping(&self, classes: &BTreeMap<(&str, &str), (f64, u64)>, same_label: u64) -> Option<String> {
        let different = classes.iter().filter(|((x, y), _)| x != y);
        let mean = |entry: &(f64, u64)| entry.0 / entry.1 as f64;
        let most = different.clone().max_by(|a, b| mean(a.1).total_cmp(&mean(b.1)))?;
        let least = different.clone().min_by(|a, b| mean(a.1).total_cmp(&mean(b.1)))?;
        if classes.len() > CLASSES_MAX * (CLASSES_MAX + 1) / 2 {
            return None;
        }
        let percent = same_label as f64 * 100.0 / self.norms.len() as f64;
        Some(format!(
            "          of different labels: {} and {} on average {:.3}, {} and {} least ({:.3}); {percent:.1} % of the \
             rows are most like one of their own label",
            most.0.0,
            most.0.1,
            mean(most.1),
            least.0.0,
            least.0.1,
            mean(least.1)
        ))
    }
}
