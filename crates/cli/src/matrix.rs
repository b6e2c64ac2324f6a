//! `bramble matrix`: what is in a matrix file, whether it can be multiplied or not.
//!
//! Invariant: only headers are read, so a file of any size takes milliseconds.

use crate::args::MatrixArgs;
use crate::exit::{Exit, Failure};
use crate::quantity::bytes;
use crate::table;
use bramble_matrix::{Described, describe};
use serde_json::{Value, json};

/// Runs the verb.
pub(crate) fn run(args: &MatrixArgs) -> Result<Exit, Failure> {
    let name = args.matrix.to_string_lossy();
    let all = describe(&args.matrix)?;
    if args.json {
        let matrices: Vec<Value> = all.iter().map(one_json).collect();
        let object = json!({"schema": "bramble.matrix/1", "name": name, "matrices": matrices});
        return crate::out(format!("{object}\n").as_bytes());
    }
    crate::out(text(&name, &all).as_bytes())
}

/// A table, and below it why some are not multiplied.
fn text(name: &str, all: &[Described]) -> String {
    let names_tensors = all.iter().any(|one| one.tensor.is_some());
    let head = [
        if names_tensors { "tensor" } else { "matrix" },
        "shape",
        "dtype",
        "multiplied in",
        "order",
        "bytes",
    ];
    let row = |one: &Described| {
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

/// A name of a file without what would steer the terminal.
fn shown(name: &str) -> String {
    name.chars().map(|c| if c.is_control() { '?' } else { c }).collect()
}

/// `60x290`; one dimension is `(290)`, none is `()`.
fn shape(dims: &[u64]) -> String {
    let listed = dims.iter().map(u64::to_string).collect::<Vec<_>>().join("x");
    if dims.len() < 2 { format!("({listed})") } else { listed }
}

fn one_json(one: &Described) -> Value {
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
