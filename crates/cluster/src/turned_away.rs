//! Counts refused connections to `--listen`, and remembers the last one with its reason.
//!
//! Place in the flow: filled while workers dial in, before and during a product; then part of the report.
//!
//! Invariant: a flood of connections prints few lines and takes no memory.

use crate::limited::{self, Limited};
use bramble_report::quantity::counted;
use serde_json::{Value, json};
use std::net::SocketAddr;
use std::time::{Duration, Instant};

/// This many refusals are printed at once, and then one in each `EVERY`.
const AT_ONCE: u32 = 5;
/// See `AT_ONCE`.
const EVERY: Duration = Duration::from_secs(10);

/// See the head of this file.
pub struct TurnedAway {
    count: u64,
    last: Option<(SocketAddr, String)>,
    limited: Limited,
}

impl Default for TurnedAway {
    fn default() -> Self {
        Self { count: 0, last: None, limited: Limited::new(AT_ONCE, EVERY) }
    }
}

impl TurnedAway {
    /// Counts a refused connection; returns a line about it, unless the rate limit suppresses it.
    pub fn add(&mut self, now: Instant, peer: SocketAddr, why: &dyn std::fmt::Display) -> Option<String> {
        self.count += 1;
        self.last = Some((peer, why.to_string()));
        let unsaid = self.limited.next(now)?;
        Some(format!("bramble: turned away {peer}: {why}{}", limited::before(unsaid)))
    }

    /// The last refused connection, for an error message.
    pub fn last(&self) -> Option<String> {
        self.last.as_ref().map(|(peer, why)| format!("the last connection, from {peer}, was refused: {why}"))
    }

    /// The line of the report; `None` if no connection was refused.
    pub fn text(&self) -> Option<String> {
        let (peer, why) = self.last.as_ref()?;
        Some(format!("refused   {}, the last from {peer}: {why}", counted(self.count, "connection")))
    }

    /// The same as JSON.
    pub fn json(&self) -> Value {
        let last = self.last.as_ref().map(|(peer, why)| json!({"address": peer.to_string(), "why": why}));
        json!({"count": self.count, "last": last})
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flood_is_counted_whole_and_said_in_few_lines() {
        let mut turned_away = TurnedAway::default();
        assert_eq!(turned_away.text(), None);
        let (start, peer) = (Instant::now(), SocketAddr::from(([10, 0, 0, 3], 7)));
        let said: Vec<String> =
            (0..10_000).filter_map(|_| turned_away.add(start, peer, &"it has no key")).collect();
        assert_eq!(said, vec!["bramble: turned away 10.0.0.3:7: it has no key"; 5]);
        let later = turned_away.add(start + EVERY, peer, &"it is late");
        assert!(later.is_some_and(|line| line.ends_with("it is late (and 9995 more before)")));
        let text = "refused   10001 connections, the last from 10.0.0.3:7: it is late";
        assert_eq!(turned_away.text().as_deref(), Some(text));
        assert_eq!(turned_away.json()["count"], 10_001);
        assert_eq!(turned_away.json()["last"]["address"], "10.0.0.3:7");
    }
}
