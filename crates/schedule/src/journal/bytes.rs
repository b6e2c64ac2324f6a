//! The bytes of a journal (docs/journal.md).
//!
//! Invariants: whatever the bytes are, `read` does not panic and takes memory in proportion to them. The head counts only with
//! its digest, records only up to the last end or mark that has the digest of all before it. What is read was
//! checked: the plan, and that each tile is one of it. One journal has one encoding.

use crate::ProtocolError;
use crate::message::wire::{Reader, Writer};
use bramble_matrix::number::{to_u64, to_usize};
use bramble_matrix::{Digest128, Digester};
use bramble_plan::Plan;
use std::collections::{BTreeMap, BTreeSet};

/// What the file begins with.
const MAGIC: [u8; 8] = *b"BRMBJRNL";
/// Of these bytes. Another one is another program's.
const VERSION: u16 = 2;
/// The one before had no marks: its records were appended after their data had been synced.
const VERSION_WITHOUT_MARKS: u16 = 1;
/// Magic, version, bytes of the head.
const START_BYTES: usize = 14;
/// Bytes of a digest.
const DIGEST_BYTES: usize = 16;
/// Bytes of a record.
pub const RECORD_BYTES: usize = 32;

/// Kinds of records.
const TILE: u8 = 1;
const END: u8 = 2;
const COMPLETE: u8 = 3;
const MARK: u8 = 4;

/// What a product is: who goes on with it has to have the same.
#[derive(Clone, Debug, PartialEq)]
pub struct Head {
    /// α.
    pub alpha: f64,
    /// β.
    pub beta: f64,
    /// Of the left operand.
    pub a: Digest128,
    /// Of the right operand.
    pub b: Digest128,
    /// Of the old C, where β ≠ 0.
    pub old_c: Option<Digest128>,
    /// The class of kernels that give the same bits; empty where machines had different ones.
    pub kernel: String,
    /// The plan, without what was predicted of it.
    pub plan: Plan,
}

impl Head {
    /// What the file begins with.
    pub fn encode(&self) -> Vec<u8> {
        let mut w = Writer::default();
        w.f64(self.alpha);
        w.f64(self.beta);
        w.raw(&self.a.0);
        w.raw(&self.b.0);
        w.u8(u8::from(self.old_c.is_some()));
        w.raw(&self.old_c.unwrap_or_default().0);
        w.text(&self.kernel);
        w.raw(&self.plan.encode());
        seal(&w.finish())
    }

    fn decode(bytes: &[u8]) -> Result<Self, ProtocolError> {
        let mut r = Reader::new(bytes);
        let (alpha, beta) = (r.f64()?, r.f64()?);
        let (a, b) = (Digest128(r.array()?), Digest128(r.array()?));
        let (has_old, old) = (r.u8()?, Digest128(r.array()?));
        let old_c = match has_old {
            0 if old == Digest128::default() => None,
            1 => Some(old),
            _ => return Err(ProtocolError::new("an old C that is neither there nor not")),
        };
        let kernel = r.text()?;
        let plan = Plan::decode(r.rest()).map_err(|e| ProtocolError::new(e.to_string()))?;
        if plan.problem.reads_c != old_c.is_some() || !alpha.is_finite() || !beta.is_finite() {
            return Err(ProtocolError::new("factors that do not fit the plan"));
        }
        Ok(Self { alpha, beta, a, b, old_c, kernel, plan })
    }
}

/// Puts what a file begins with around the bytes of a head.
pub fn seal(head: &[u8]) -> Vec<u8> {
    let Ok(len) = u32::try_from(head.len()) else { panic!("a head of {} bytes", head.len()) };
    let mut bytes = Vec::with_capacity(START_BYTES + head.len() + DIGEST_BYTES);
    bytes.extend(MAGIC);
    bytes.extend(VERSION.to_le_bytes());
    bytes.extend(len.to_le_bytes());
    bytes.extend(head);
    bytes.extend(digest(&bytes).0);
    bytes
}

fn digest(bytes: &[u8]) -> Digest128 {
    let mut digester = Digester::default();
    digester.update(bytes);
    digester.digest()
}

/// A tile that is complete.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Record {
    pub(super) region: u8,
    pub(super) tile: u64,
    pub(super) digest: Digest128,
}

fn encode(kind: u8, ends: u32, record: &Record) -> [u8; RECORD_BYTES] {
    let mut bytes = [0; RECORD_BYTES];
    bytes[0] = kind;
    bytes[1] = record.region;
    bytes[4..8].copy_from_slice(&ends.to_le_bytes());
    bytes[8..16].copy_from_slice(&record.tile.to_le_bytes());
    bytes[16..].copy_from_slice(&record.digest.0);
    bytes
}

/// Records of tiles with their end, after so many ends and marks; `records` counts all with these.
pub(super) fn append(digester: &mut Digester, tiles: &[Record], ends: u32, records: u64) -> Vec<u8> {
    let mut bytes: Vec<u8> = tiles.iter().flat_map(|tile| encode(TILE, ends, tile)).collect();
    digester.update(&bytes);
    bytes.extend(end(digester, END, ends, records));
    bytes
}

/// Says that the data of so many records, the first ones, are on the disk.
pub(super) fn mark(digester: &mut Digester, ends: u32, records: u64) -> Vec<u8> {
    end(digester, MARK, ends, records).to_vec()
}

fn end(digester: &mut Digester, kind: u8, ends: u32, records: u64) -> [u8; RECORD_BYTES] {
    let record = Record { region: 0, tile: records, digest: digester.digest() };
    let bytes = encode(kind, ends, &record);
    digester.update(&bytes);
    bytes
}

/// What stands after all else when C is complete and about to get its name: the digest of all of C.
pub fn complete(c: Digest128) -> [u8; RECORD_BYTES] {
    encode(COMPLETE, 0, &Record { region: 0, tile: 0, digest: c })
}

/// What `complete` wrote, if that is it.
fn completed(bytes: &[u8; RECORD_BYTES]) -> Option<Digest128> {
    let c = Digest128(*bytes.last_chunk()?);
    (*bytes == complete(c)).then_some(c)
}

/// A journal as far as it is valid.
#[derive(Clone, Debug)]
pub struct Journal {
    /// What the product is.
    pub head: Head,
    /// Tiles that are complete, by region and number, with the digest of their elements.
    pub tiles: BTreeMap<(usize, u64), Digest128>,
    /// Those of them that may not have come to the disk, if the machine went down.
    pub unsynced: BTreeSet<(usize, u64)>,
    /// Recorded tiles that whoever goes on has not found as they were: it makes them again.
    pub missing: BTreeSet<(usize, u64)>,
    /// Of all of C, where that was complete and about to get its name.
    pub c: Option<Digest128>,
    /// Bytes of the file that count for a run that goes on: it cuts off the rest.
    pub valid_bytes: u64,
    pub(super) digester: Digester,
    pub(super) ends: u32,
    pub(super) records: u64,
    pub(super) durable: u64,
}

/// A journal from the bytes of its file. An error where the head is not one.
pub fn read(bytes: &[u8]) -> Result<Journal, ProtocolError> {
    let short = || ProtocolError::new("it is cut short");
    let (start, rest) = bytes.split_first_chunk::<START_BYTES>().ok_or_else(short)?;
    let mut r = Reader::new(start);
    if r.array()? != MAGIC {
        return Err(ProtocolError::new("it is no journal of bramble"));
    }
    let version = r.u16()?;
    if ![VERSION, VERSION_WITHOUT_MARKS].contains(&version) {
        return Err(ProtocolError::new(format!("it is of version {version}, not {VERSION}")));
    }
    let len = to_usize(r.u32()?);
    let (head, rest) = rest.split_at_checked(len).ok_or_else(short)?;
    let (stored, records) = rest.split_first_chunk::<DIGEST_BYTES>().ok_or_else(short)?;
    let begins = bytes.get(..START_BYTES + len + DIGEST_BYTES).ok_or_else(short)?;
    if digest(&begins[..START_BYTES + len]) != Digest128(*stored) {
        return Err(ProtocolError::new("its head is damaged"));
    }
    let mut digester = Digester::default();
    digester.update(begins);
    let mut journal = Journal {
        head: Head::decode(head)?,
        tiles: BTreeMap::new(),
        unsynced: BTreeSet::new(),
        missing: BTreeSet::new(),
        c: None,
        valid_bytes: to_u64(begins.len()),
        digester,
        ends: 0,
        records: 0,
        durable: 0,
    };
    let said = journal.take(records);
    if version == VERSION_WITHOUT_MARKS {
        journal.durable = journal.records;
    }
    // Of two records of one tile the later counts, for this as for all else.
    for (number, tile) in (0..).zip(said) {
        if number < journal.durable {
            journal.unsynced.remove(&tile)
        } else {
            journal.unsynced.insert(tile)
        };
    }
    Ok(journal)
}

impl Journal {
    /// Takes records as long as they are valid: the tiles in their order.
    fn take(&mut self, records: &[u8]) -> Vec<(usize, u64)> {
        let (records, _) = records.as_chunks::<RECORD_BYTES>();
        let mut digester = self.digester.clone();
        let (mut tiles, mut said) = (Vec::new(), Vec::new());
        for bytes in records {
            let count = to_u64(tiles.len());
            let Some((kind, record)) = self.record(bytes) else {
                self.c = completed(bytes).filter(|_| count == 0);
                return said;
            };
            let is_right = match kind {
                TILE => true,
                END => record.tile == self.records + count,
                _ => count == 0 && (self.durable..=self.records).contains(&record.tile),
            };
            if !is_right || (kind != TILE && record.digest != digester.digest()) {
                return said;
            }
            digester.update(bytes);
            if kind == TILE {
                tiles.push(((usize::from(record.region), record.tile), record.digest));
                continue;
            }
            self.digester = digester.clone();
            said.extend(tiles.iter().map(|(tile, _)| *tile));
            self.tiles.extend(tiles.drain(..));
            if kind == END {
                self.records = record.tile
            } else {
                self.durable = record.tile
            }
            self.ends += 1;
            self.valid_bytes += (count + 1) * to_u64(RECORD_BYTES);
        }
        said
    }

    /// A record that may come next.
    fn record(&self, bytes: &[u8; RECORD_BYTES]) -> Option<(u8, Record)> {
        let mut r = Reader::new(bytes);
        let (kind, region, zero) = (r.u8().ok()?, r.u8().ok()?, r.u16().ok()?);
        let (ends, tile, digest) = (r.u32().ok()?, r.u64().ok()?, Digest128(r.array().ok()?));
        let is_tile = || self.head.plan.regions.get(usize::from(region)).is_some_and(|r| tile < r.tiles());
        let is_one = match kind {
            TILE => is_tile(),
            END | MARK => region == 0,
            _ => false,
        };
        // More ends than can be counted are no journal's.
        let is_next = ends == self.ends && ends < u32::MAX;
        (is_one && is_next && zero == 0).then_some((kind, Record { region, tile, digest }))
    }
}
