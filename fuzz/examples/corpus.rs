//! Corpora as text and as folders: `corpus unpack` before the fuzzer, `corpus pack` after it.
//!
//! `corpus/NAME.hex` has a line of hexadecimal digits for each input and is committed; `corpus/NAME/` has a file for each
//! and belongs to the fuzzer. Unpacking adds the seeds that the code makes. Packing takes the shortest inputs first.

use bramble_fuzz::{TARGETS, Target, corpus};
use std::io::{Error, Result};
use std::path::{Path, PathBuf};

/// Inputs of a packed corpus: enough to cover the code that the fuzzer has reached, few enough to commit.
const INPUTS_MAX: usize = 400;

fn main() -> Result<()> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus");
    for target in TARGETS.iter().filter(|t| words.len() < 2 || words[1..].iter().any(|w| w == t.name)) {
        match words.first().map(String::as_str) {
            Some("unpack") => unpack(target, &folder)?,
            Some("pack") => pack(target, &folder)?,
            Some("list") => println!("{} {}", target.name, target.input_bytes_max),
            _ => return Err(Error::other("corpus unpack|pack|list [TARGET…]")),
        }
    }
    Ok(())
}

fn unpack(target: &Target, folder: &Path) -> Result<()> {
    let into = folder.join(target.name);
    std::fs::create_dir_all(&into)?;
    let mut inputs = (target.seeds)();
    match std::fs::read_to_string(text_of(target, folder)) {
        Ok(text) => inputs.extend(corpus::parse(&text).map_err(Error::other)?),
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => {}
        Err(e) => return Err(e),
    }
    for (i, input) in inputs.iter().enumerate() {
        std::fs::write(into.join(format!("packed-{i:04}")), input)?;
    }
    println!("{}: {} inputs in {}", target.name, inputs.len(), into.display());
    Ok(())
}

fn pack(target: &Target, folder: &Path) -> Result<()> {
    let mut inputs = Vec::new();
    for entry in std::fs::read_dir(folder.join(target.name))? {
        inputs.push(std::fs::read(entry?.path())?);
    }
    inputs.sort_by(|a, b| a.len().cmp(&b.len()).then_with(|| a.cmp(b)));
    inputs.dedup();
    let found = inputs.len();
    inputs.retain(|input| !input.is_empty() && input.len() <= target.input_bytes_max);
    inputs.truncate(INPUTS_MAX);
    std::fs::write(text_of(target, folder), corpus::format(target.name, &inputs))?;
    println!("{}: {} of {found} inputs packed", target.name, inputs.len());
    Ok(())
}

fn text_of(target: &Target, folder: &Path) -> PathBuf {
    folder.join(format!("{}.hex", target.name))
}
