//! Placed matrices as JSON (docs/json.md): where they lie, how they were made, and reductions of them.

use bramble_plan::ShardAxis;
use bramble_primary::{MakeReport, PartReport, PutReport, ReduceReport};
use serde_json::{Value, json};

/// A matrix that was placed.
pub fn put_json(put: &PutReport) -> Value {
    let axis = put.axis.map(|axis| if axis == ShardAxis::Rows { 0 } else { 1 });
    let part = |part: &PartReport| {
        json!({
            "machine": part.machine,
            "row": part.rect.rows.start,
            "rows": part.rect.rows.len(),
            "col": part.rect.cols.start,
            "cols": part.rect.cols.len(),
            "bytes": part.bytes,
        })
    };
    let parts: Vec<Value> = put.parts.iter().map(part).collect();
    json!({
        "kind": "put",
        "rows": put.shape.rows,
        "cols": put.shape.cols,
        "dtype": put.dtype.name(),
        "axis": axis,
        "parts": parts,
        "lost": put.lost,
        "bytes_sent": put.bytes_sent,
    })
}

/// A result that stays at the machines.
pub fn made_json(made: &MakeReport) -> Value {
    let mut fields = put_json(&made.put);
    merge(
        &mut fields,
        json!({
            "kind": "kept",
            "bytes_between": made.bytes_between,
            "checked": made.is_checked,
            "lines_recomputed": made.lines_recomputed,
        }),
    );
    fields
}

/// How the machines reduced a matrix.
pub fn reduction_json(report: &ReduceReport) -> Value {
    let machine = |(name, bytes): &(String, u64)| json!({"machine": name, "bytes": bytes});
    let machines: Vec<Value> = report.machines.iter().map(machine).collect();
    json!({
        "machines": machines,
        "bytes_sent": report.bytes_sent,
        "checked": report.is_checked,
        "rows_recomputed": report.rows_recomputed,
    })
}

/// Adds the fields of an object to another.
pub fn merge(object: &mut Value, fields: Value) {
    if let (Value::Object(object), Value::Object(fields)) = (object, fields) {
        object.extend(fields);
    }
}
