//! Options that say how a product is partitioned and computed, for all verbs that compute products.

use crate::args::{LinkKind, TeamArgs, kernel};
use crate::levels;
use bramble_kernel::{Choice, KernelName};
use bramble_matrix::DType;
use bramble_plan::{PlanOptions, Preference, Relay, Strategy, TileSize};
use bramble_report::exit::Failure;
use bramble_report::quantity::size;
use clap::{Args, ValueEnum};

/// The value of `--strategy`; `auto` is `None` and picks the fastest plan by prediction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StrategyArg(pub Option<Strategy>);

/// Whether workers pass panels on to each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum RelayKind {
    /// If relaying is predicted to be faster, or as fast with fewer bytes sent
    Auto,
    /// Wherever two or more workers can connect to each other
    On,
    /// Never
    Off,
}

/// How the product is partitioned and computed.
#[derive(Args, Clone, Debug)]
pub struct CutArgs {
    /// Kernel: auto, reference, simd, openblas, blis; or on top of one of these (default: simd) blocked:BASE:EDGE
    /// (cache blocks) or strassen:BASE:CUTOFF (fewer multiplications in large tiles, larger rounding errors for
    /// floats)
    #[arg(long, value_name = "K", env = "BRAMBLE_KERNEL", default_value = "auto", value_parser = kernel)]
    kernel: Choice,
    /// How to partition the product among machines: auto (the fastest by prediction, which may be this machine
    /// alone), naive, row:N, square:N, reuse, cuboid, cuboid:AxBxC, summa:RxC, strassen:L or strassen:L+ANOTHER (L
    /// levels of Strassen's method above reuse, or above ANOTHER strategy). Any strategy but auto uses the workers,
    /// if there are any
    #[arg(long, value_name = "S", default_value = "auto", value_parser = strategy)]
    pub strategy: StrategyArg,
    /// Give C the same bits for every strategy and every set of machines: one order of summation, and the simd kernel
    /// everywhere unless --kernel names another. For floats, the bits still depend on --panel (see
    /// docs/kernel-contract.md)
    #[arg(long)]
    pub reproducible: bool,
    /// Make every element as accurate as by the classical method: never use Strassen's method
    #[arg(long)]
    pub elementwise: bool,
    /// Whether workers pass panels of A and B on to each other, so that this machine sends each panel once
    #[arg(long, value_name = "WHEN", value_enum, default_value = "auto")]
    relay: RelayKind,
    /// Rows and columns of a tile of C
    #[arg(long, value_name = "N")]
    tile: Option<u64>,
    /// Depth of a step of k; for floats, the last bits of C depend on it, even with --reproducible
    #[arg(long, value_name = "N")]
    panel: Option<u64>,
    /// Credit of each worker: most bytes in its memory at once (sent to it, or results not yet returned)
    #[arg(long, value_name = "SIZE", value_parser = size)]
    pub credits: Option<u64>,
}

impl CutArgs {
    /// The kernel that the options select.
    pub fn kernel(&self) -> Choice {
        match self.kernel {
            Choice::Auto if self.reproducible => Choice::Named(KernelName::Simd),
            kernel => kernel,
        }
    }

    /// Tile size and step depth of an m × n product of depth k.
    pub fn cut(&self, sizes: [u64; 3], dtype: DType) -> TileSize {
        levels::cut(TileSize { tile: self.tile, depth: self.panel }, self.kernel(), sizes, dtype)
    }

    /// Whether workers may pass matrices to each other.
    pub fn may_relay(&self) -> bool {
        self.relay != RelayKind::Off
    }

    /// Refuses `--relay on` over links whose workers have no addresses and cannot connect to each other.
    pub fn check_relay(&self, team: &TeamArgs) -> Result<(), Failure> {
        let way = match (self.relay, team.link) {
            (RelayKind::Auto | RelayKind::Off, _) => return Ok(()),
            (RelayKind::On, None | Some(LinkKind::Thread | LinkKind::Tcp)) => return Ok(()),
            (RelayKind::On, Some(LinkKind::Pipe | LinkKind::Shm)) => "use --link tcp",
            (RelayKind::On, Some(LinkKind::Mpi)) => "leave it out",
        };
        let link = team.link.map_or("", LinkKind::name);
        let text = format!("--relay on: workers on --link {link} cannot connect to each other; {way}");
        Err(Failure::usage(text))
    }

    /// Refuses options that the selected kernel cannot satisfy.
    pub fn check(&self, dtype: DType) -> Result<(), Failure> {
        levels::check(self.kernel(), self.strategy.0, self.elementwise, dtype)
    }

    /// The constraints that the options put on the plan. `workers_only`: use the workers even if the primary alone is
    /// predicted to be faster.
    pub fn wish(&self, workers_only: bool) -> PlanOptions {
        let is_named = self.strategy.0.is_some();
        PlanOptions {
            strategy: self.strategy.0,
            who: if workers_only || is_named { Preference::Workers } else { Preference::Fastest },
            reproducible: self.reproducible,
            elementwise: self.elementwise,
            relay: match self.relay {
                RelayKind::Auto => Relay::Auto,
                RelayKind::On => Relay::On,
                RelayKind::Off => Relay::Off,
            },
            tiles_early: None,
        }
    }
}

fn strategy(text: &str) -> Result<StrategyArg, String> {
    if text == "auto" { Ok(StrategyArg(None)) } else { text.parse().map(|s| StrategyArg(Some(s))) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn auto_is_no_strategy() {
        assert_eq!(strategy("auto"), Ok(StrategyArg(None)));
        assert_eq!(strategy("row:4").map(|w| w.0.map(|s| s.to_string())), Ok(Some("row:4".to_owned())));
        assert!(strategy("best").is_err());
    }
}
