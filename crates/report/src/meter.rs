//! The contents of the progress bar: completed tiles, rates, and the remaining time.
//!
//! Place in the flow: `progress` draws the bar from this.
//!
//! Invariants: a figure is shown only once it is known. The bar is full only when all tiles are complete. The
//! remaining time follows from the rate of this run; tiles of a resumed run count as done, but not for the rate. The
//! rate of each direction is shown after its first megabyte, so never for a run without links that move bytes.

use crate::quantity::{bytes, seconds};
use bramble_primary::ProductProgress;

/// Resolution of the bar.
pub(crate) const PARTS: u64 = 1000;
/// The remaining time is shown after this part of the work, and after `PACE_SECONDS_MIN`.
const PACE_PART_MIN: f64 = 0.02;
/// See `PACE_PART_MIN`.
const PACE_SECONDS_MIN: f64 = 1.0;
/// Bytes that have to move before a rate is shown.
const MOVED_BYTES_MIN: u64 = 1_000_000;

/// Computes what the bar shows; remembers fraction and time of the first state.
#[derive(Default)]
pub(crate) struct ProgressMeter {
    first: Option<(f64, f64)>,
}

/// Position and text of the bar.
#[derive(Debug, PartialEq)]
pub(crate) struct BarState {
    /// Of `PARTS`.
    pub(crate) position: u64,
    /// What stands behind the bar.
    pub(crate) text: String,
}

impl ProgressMeter {
    /// The bar for a state of the run.
    pub(crate) fn shown(&mut self, state: &ProductProgress) -> BarState {
        let elapsed_s = state.elapsed.as_secs_f64();
        let fraction = state.fraction.clamp(0.0, 1.0);
        let (fraction_then, elapsed_then_s) = *self.first.get_or_insert((fraction, elapsed_s));
        let (done, took_s) = (fraction - fraction_then, elapsed_s - elapsed_then_s);
        let is_complete = state.tiles > 0 && state.tiles_done >= state.tiles;
        let position = if is_complete { PARTS } else { ((fraction * PARTS as f64) as u64).min(PARTS - 1) };
        let mut text = format!("{}/{} tiles", state.tiles_done, state.tiles);
        if took_s > 0.0 && done > 0.0 {
            text += &format!("  {:.1} Gflop/s", state.flops * done / took_s / 1e9);
        }
        for (moved, way) in [(state.bytes_sent, "out"), (state.bytes_received, "in")] {
            if moved >= MOVED_BYTES_MIN && elapsed_s > 0.0 {
                text += &format!("  {}/s {way}", bytes(moved as f64 / elapsed_s));
            }
        }
        if !is_complete && done >= PACE_PART_MIN && took_s >= PACE_SECONDS_MIN {
            // At least one second: the run is not complete yet.
            let left_s = ((1.0 - fraction) / done * took_s).max(1.0);
            text += &format!("  {} left", about(left_s));
        }
        BarState { position, text }
    }
}

/// An estimated time, in whole seconds below ten minutes: 7 s, 90 s, 12.3 min.
fn about(t: f64) -> String {
    if t < 600.0 { format!("{t:.0} s") } else { seconds(t) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    fn state(fraction: f64, seconds: f64) -> ProductProgress {
        let tiles_done = (fraction * 100.0) as u64;
        let elapsed = Duration::from_secs_f64(seconds);
        ProductProgress {
            tiles_done,
            tiles: 100,
            fraction,
            flops: 1e12,
            bytes_sent: 0,
            bytes_received: 0,
            elapsed,
        }
    }

    #[test]
    fn a_local_run_has_no_columns_of_links_and_a_fast_one_no_time_that_is_left() {
        let mut meter = ProgressMeter::default();
        let text = |shown: BarState| (shown.position, shown.text);
        assert_eq!(text(meter.shown(&state(0.0, 0.0))), (0, "0/100 tiles".to_owned()));
        let early = text(meter.shown(&state(0.12, 0.1)));
        assert_eq!(early, (120, "12/100 tiles  1200.0 Gflop/s".to_owned()));
        let later = text(meter.shown(&state(0.12, 12.0)));
        assert_eq!(later, (120, "12/100 tiles  10.0 Gflop/s  88 s left".to_owned()));
        let nearly = text(meter.shown(&state(0.9999, 100.0)));
        assert_eq!(nearly, (999, "99/100 tiles  10.0 Gflop/s  1 s left".to_owned()));
        assert_eq!(text(meter.shown(&state(1.0, 100.0))), (1000, "100/100 tiles  10.0 Gflop/s".to_owned()));
    }

    #[test]
    fn the_bar_is_full_only_when_all_tiles_are_there_whatever_the_order_of_states() {
        let mut meter = ProgressMeter::default();
        for (tiles, done, fraction) in
            [(0, 0, 0.0), (0, 0, 1.0), (4, 0, 1.0), (4, 3, 1.5), (4, 3, f64::NAN), (4, 1, 0.2)]
        {
            let state = ProductProgress { tiles, tiles_done: done, ..state(fraction, 5.0) };
            let shown = meter.shown(&state);
            assert!(shown.position < PARTS && !shown.text.contains("left"), "{shown:?}");
        }
        assert_eq!(
            meter.shown(&ProductProgress { tiles: 4, tiles_done: 4, ..state(0.99, 6.0) }).position,
            PARTS
        );
    }

    #[test]
    fn what_another_run_has_left_is_done_but_says_nothing_of_the_pace() {
        let mut meter = ProgressMeter::default();
        assert_eq!(meter.shown(&state(0.5, 0.0)).text, "50/100 tiles");
        let shown = meter.shown(&state(0.6, 10.0));
        assert_eq!((shown.position, shown.text.as_str()), (600, "60/100 tiles  10.0 Gflop/s  40 s left"));
        assert!(
            meter.shown(&state(0.4, 20.0)).text == "40/100 tiles",
            "lost tiles are recomputed, so the fraction \
        may shrink"
        );
    }

    #[test]
    fn rates_of_links_are_shown_where_bytes_move() {
        let mut meter = ProgressMeter::default();
        meter.shown(&state(0.0, 0.0));
        let moving = |bytes_sent| ProductProgress { bytes_sent, bytes_received: 0, ..state(0.1, 0.5) };
        assert!(!meter.shown(&moving(999_999)).text.contains("out"));
        let text = meter.shown(&moving(50_000_000)).text;
        assert!(text.ends_with("  100.00 MB/s out"), "{text}");
    }
}
