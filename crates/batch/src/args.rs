//! The options of `bramble batch`.

use bramble_cluster::args::{TeamArgs, element_type};
use bramble_cluster::cut::CutArgs;
use bramble_matrix::DType;
use bramble_verify::Effort;
use clap::Args;
use std::path::PathBuf;

#[derive(Args, Debug)]
#[allow(missing_docs)] // A comment here would become the help text of the verb.
pub struct BatchArgs {
    /// File with one task on each line, or - for standard input, whose tasks run as they arrive
    #[arg(value_name = "FILE")]
    pub(crate) file: PathBuf,
    #[command(flatten)]
    pub team: TeamArgs,
    #[command(flatten)]
    pub(crate) cut: CutArgs,
    /// Convert all operands to f32, f64, i32 or i64
    #[arg(long, value_name = "D", value_parser = element_type)]
    pub(crate) dtype: Option<DType>,
    /// How thoroughly to verify products: off, fast, full
    #[arg(long, value_name = "EFFORT", default_value = "fast", value_parser = str::parse::<Effort>)]
    pub(crate) verify: Effort,
    /// Disable work stealing: fast machines do not take over work that the plan gave to slow ones
    #[arg(long)]
    pub(crate) no_steal: bool,
    /// Go on with the next line after a task that failed
    #[arg(long)]
    pub(crate) keep_going: bool,
    /// Print one JSON object for each task instead of a line
    #[arg(long)]
    pub(crate) json: bool,
    /// No progress, no report
    #[arg(short, long, conflicts_with = "verbose")]
    pub(crate) quiet: bool,
    /// Report each product, its machines, and how their threads spent their time
    #[arg(short, long)]
    pub(crate) verbose: bool,
}
