//! Key texts: round trips, typing errors, and arbitrary text.

#![allow(clippy::unwrap_used)] // A test may panic.

use super::{ALPHABET, ClusterKey, KeyError, PREFIX};
use proptest::prelude::*;

fn key() -> ClusterKey {
    ClusterKey::from_bytes(*b"twenty secret bytes.")
}

fn refused(text: &str) -> KeyError {
    ClusterKey::parse(text).unwrap_err()
}

#[test]
fn the_text_of_a_key_never_changes() {
    // Keys outlive a version: these texts are part of the contract.
    assert_eq!(key().to_text(), "bramble1-ehvpavkm-f4g76sb3-e9jq8832-f5t6awse-qyr4");
    assert_eq!(key().id(), "eaac-2cfa");
    let zero = ClusterKey::from_bytes([0; 20]);
    assert_eq!(zero.to_text(), "bramble1-00000000-00000000-00000000-00000000-81fn");
}

#[test]
fn what_people_type_is_understood() {
    let zero = ClusterKey::from_bytes([0; 20]).to_text();
    let lines = [
        key().to_text().to_uppercase(),
        format!("  {}\r\n", key().to_text()),
        format!("{PREFIX}{}", key().to_text().split_off(PREFIX.len()).replace('-', "")),
    ];
    for line in lines {
        assert_eq!(ClusterKey::parse(&line).unwrap().bytes(), key().bytes());
    }
    let head = PREFIX.len() + 35;
    let letters = format!("{}{}{}", PREFIX, zero[PREFIX.len()..head].replace('0', "O"), &zero[head..]);
    assert_eq!(ClusterKey::parse(&letters).unwrap().bytes(), &[0; 20]);
    let ones = ClusterKey::from_bytes([0x08, 0x42, 0x10, 0x84, 0x21].repeat(4).try_into().unwrap()).to_text();
    let letters = format!("{}{}", PREFIX, ones[PREFIX.len()..].replacen('1', "l", 3).replacen('1', "I", 3));
    assert_ne!(letters, ones);
    assert_eq!(ClusterKey::parse(&letters).unwrap().to_text(), ones);
}

#[test]
fn one_wrong_character_is_noticed_wherever_it_is() {
    let good = key().to_text();
    for at in (PREFIX.len()..good.len()).filter(|at| good.as_bytes()[*at] != b'-') {
        for other in ALPHABET.iter().filter(|c| **c != good.as_bytes()[at]) {
            let mut bad = good.clone().into_bytes();
            bad[at] = *other;
            assert_eq!(refused(str::from_utf8(&bad).unwrap()), KeyError::Checksum);
        }
        let mut short = good.clone();
        short.remove(at);
        assert_eq!(refused(&short), KeyError::Length { found: 35 });
    }
}

#[test]
fn an_error_says_what_is_wrong_and_never_what_was_typed() {
    let good = key().to_text();
    let mut strange = good.clone();
    strange.replace_range(11..12, "u");
    for (text, error) in [
        ("", KeyError::Foreign),
        ("hunter2", KeyError::Foreign),
        ("bramble0-00000000", KeyError::Foreign),
        ("bramblé1-0000", KeyError::Foreign),
        ("bramble2-anything at all", KeyError::Newer),
        ("Bramble12-", KeyError::Newer),
        ("bramble1-", KeyError::Length { found: 0 }),
        (&format!("{good}0"), KeyError::Length { found: 37 }),
        (&format!("{good} {good}"), KeyError::Character { place: 50 }),
        (&strange, KeyError::Character { place: 12 }),
    ] {
        assert_eq!(refused(text), error, "{text}");
    }
    assert!(refused("bramble2-0").to_string().contains("newer"));
    assert!(refused(&strange).to_string().contains("character 12"));
    assert!(refused("bramble1-0").to_string().contains("has 1 characters after bramble1-, not 36"));
}

#[test]
fn debug_shows_the_id_and_no_secret() {
    let shown = format!("{:?}", key());
    assert_eq!(shown, format!("ClusterKey({})", key().id()));
}

#[test]
fn other_keys_have_other_ids() {
    let ids: std::collections::BTreeSet<String> =
        (0..=255).map(|b| ClusterKey::from_bytes([b; 20]).id()).collect();
    assert_eq!(ids.len(), 256);
}

proptest! {
    #[test]
    fn every_key_survives_its_text(bytes: [u8; 20]) {
        let text = ClusterKey::from_bytes(bytes).to_text();
        prop_assert_eq!(text.len(), 49);
        let key = ClusterKey::parse(&text).unwrap();
        prop_assert_eq!(key.bytes(), &bytes);
    }

    #[test]
    fn any_bytes_are_a_key_or_an_error(bytes in proptest::collection::vec(any::<u8>(), 0..80), prefixed: bool) {
        let text = String::from_utf8_lossy(&bytes);
        let text = if prefixed { format!("{PREFIX}{text}") } else { text.into_owned() };
        prop_assert!(ClusterKey::parse(&text).is_err());
    }
}
