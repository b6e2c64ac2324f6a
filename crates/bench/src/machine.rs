//! The output before the measurements: the machine, as the first line of `bench … --json`, or the head of the CSV.

use super::show::Form;
use bramble_report::machine::object;
use bramble_worker::{default_threads, host_name};

/// The output before the measurements: the JSON line of the machine, or the head of the CSV.
pub(super) fn head(form: Form, csv_head: &str) -> String {
    match form {
        Form::Csv => csv_head.to_owned(),
        Form::Json => object(&host_name(), default_threads()).to_string() + "\n",
        Form::Table => String::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bramble_report::machine::SCHEMA;
    use serde_json::Value;

    #[test]
    fn this_machine_has_a_name_and_cores() {
        let read: Value = serde_json::from_str(&head(Form::Json, "")).unwrap();
        assert_eq!(read["schema"], SCHEMA);
        assert!(!read["host"].as_str().unwrap().is_empty() && read["cores"].as_u64().unwrap() > 0);
    }
}
