//! The options of `bramble.Cluster`, as the words of a command line: one parser checks both.

use bramble_client::ClientOptions;
use bramble_cluster::args::TeamArgs;
use bramble_cluster::cut::CutArgs;
use bramble_report::exit::Failure;
use bramble_report::progress::ProgressOptions;
use bramble_verify::Effort;
use clap::Parser;

/// The options of a cluster.
#[derive(Parser)]
#[command(name = "bramble.Cluster", no_binary_name = true, disable_help_flag = true)]
pub(crate) struct ClusterArgs {
    #[command(flatten)]
    pub(crate) team: TeamArgs,
    #[command(flatten)]
    cut: CutArgs,
    #[arg(long, default_value = "fast", value_parser = str::parse::<Effort>)]
    verify: Effort,
    #[arg(long)]
    no_steal: bool,
}

impl ClusterArgs {
    /// Parses the words. `key`: the cluster key, which is no word, since messages repeat words.
    pub(crate) fn of(words: &[String], key: Option<&str>) -> Result<Self, Failure> {
        let wrong = |e: clap::Error| {
            // One line; the usage of a command follows after an empty one.
            let text = e.to_string();
            let text = text.split("\n\n").next().unwrap_or_default().trim_start_matches("error: ");
            Failure::usage(text.split_whitespace().collect::<Vec<_>>().join(" "))
        };
        let mut args = Self::try_parse_from(words).map_err(wrong)?;
        args.team.machines.trust.key = key.map(|key| bramble_cluster::key::given("key", key)).transpose()?;
        Ok(args)
    }

    /// How products use the cluster.
    pub(crate) fn options(&self) -> ClientOptions {
        ClientOptions {
            cut: self.cut.clone(),
            verify: self.verify,
            steals: !self.no_steal,
            account: false,
            degraded: self.team.degraded,
            progress: ProgressOptions {
                is_quiet: true,
                is_json: false,
                is_verbose: false,
                is_brief: true,
                keeps_journal: false,
            },
        }
    }
}
