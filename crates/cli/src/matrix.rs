//! `bramble matrix`: lists the contents of a matrix file, including matrices that Bramble cannot multiply.
//!
//! Invariant: only the headers of a file are read, so one of any size takes milliseconds. Standard input is read to its end.

use crate::args::MatrixArgs;
use crate::stream;
use bramble_cluster::args::is_standard_stream;
use bramble_matrix::{MatrixDescription, describe};
use bramble_report::exit::{Exit, Failure};
use bramble_report::quantity::bytes;
use bramble_report::table;
use serde_json::{Value, json};

/// Runs the verb.
pub(crate) fn run(args: &MatrixArgs) -> Result<Exit, Failure> {
    let name = args.matrix.to_string_lossy();
    let all = if is_standard_stream(&args.matrix) { stream::describe()? } else { describe(&args.matrix)? };
    if args.json {
        let matrices: Vec<Value> = all.iter().map(one_json).collect();
        let object = json!({"schema": "bramble.matrix/1", "name": name, "matrices": matrices});
        return bramble_report::out(format!("{object}\n").as_bytes());
    }
    bramble_report::out(text(&name, &all).as_bytes())
}

/// The table, and below it the reasons why some matrices cannot be multiplied.
fn text(name: &str, all: &[MatrixDescription]) -> String {
    let names_tensors = all.iter().any(|one| one.tensor.is_some());
    let head = [
        if names_tensors { "tensor" } else { "matrix" },
        "shape",
        "dtype",
        "multiplied in",
        "order",
        "bytes",
    ];
    let row = |one: &MatrixDescription| {
        let product = one.product.as_ref().map_or("-", |dtype| dtype.name());
        vec![
            shown(one.tensor.as_deref().unwrap_or(name)),
            shape(&one.dims),
            one.dtype.clone(),
            product.to_owned(),
            one.order.name().to_owned(),
            bytes(one.bytes as f64),
        ]
    };
    let rows: Vec<Vec<String>> = all.iter().map(row).collect();
    let mut lines = table::lines(&head, &rows);
    if all.is_empty() {
        lines = vec![format!("{}: holds no tensors", shown(name))];
    }
    for one in all {
        if let Err(why) = &one.product {
            lines.push(format!("{} {why}", shown(one.tensor.as_deref().unwrap_or(name))));
        }
    }
    lines.join("\n") + "\n"
}

/// A name from a file, without terminal control characters.
fn shown(name: &str) -> String {
    name.chars().map(|c| if c.is_control() { '?' } else { c }).collect()
}

/// `60x290`; one dimension is `(290)`, none is `()`.
fn shape(dims: &[u64]) -> String {
    let listed = dims.iter().map(u64::to_string).collect::<Vec<_>>().join("x");
    if dims.len() < 2 { format!("({listed})") } else { listed }
}

fn one_json(one: &MatrixDescription) -> Value {
    json!({
        "tensor": one.tensor,
        "format": one.format,
        "shape": one.dims,
        "dtype": one.dtype,
        "multiplied_in": one.product.as_ref().ok().map(|dtype| dtype.name()),
        "why_not": one.product.as_ref().err(),
        "order": one.order.name(),
        "bytes": one.bytes,
    })
}
