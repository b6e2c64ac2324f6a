//! The bytes of a journal (docs/journal.md).
//!
//! Invariants: for any bytes, `read` does not panic and takes memory in proportion to their number. The head
//! counts only with its digest; records count only up to the last end or watermark record whose digest covers
//! everything before it. All that is returned was checked: the plan, and that each tile belongs to it. Each
//! journal has exactly one encoding.

use crate::ProtocolError;
use crate::message::{FieldReader, FieldWriter};
use alloc::collections::{BTreeMap, BTreeSet};
use alloc::format;
use alloc::string::{String, ToString};
use alloc::vec::Vec;
use bramble_base::number::{to_u64, to_usize};
use bramble_base::{Digest128, Digester};
use bramble_plan::Plan;

/// First bytes of the file.
const MAGIC: [u8; 8] = *b"BRMBJRNL";
/// Version of this format. Other versions are written by other versions of the program.
const VERSION: u16 = 2;
/// The previous version had no watermarks: its records were appended after their data had been synced.
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

/// Identity of a product: a resumed run must have the same.
#[derive(Clone, Debug, PartialEq)]
pub struct Head {
    /// α.
    pub alpha: f64,
    /// β.
    pub beta: f64,
    /// Digest of the left operand.
    pub a: Digest128,
    /// Digest of the right operand.
    pub b: Digest128,
    /// Digest of the old C, if β ≠ 0.
    pub old_c: Option<Digest128>,
    /// Class of kernels with equal bits; empty if machines had different classes.
    pub kernel: String,
    /// The plan, without its prediction.
    pub plan: Plan,
}

impl Head {
    /// First bytes of the file, up to the records.
    pub fn encode(&self) -> Vec<u8> {
        let mut w = FieldWriter::default();
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
        let mut r = FieldReader::new(bytes);
        let (alpha, beta) = (r.f64()?, r.f64()?);
        let (a, b) = (Digest128(r.array()?), Digest128(r.array()?));
        let (has_old, old) = (r.u8()?, Digest128(r.array()?));
        let old_c = match has_old {
            0 if old == Digest128::default() => None,
            1 => Some(old),
            _ => return Err(ProtocolError::new("an invalid flag for the old C")),
        };
        let kernel = r.text()?;
        let plan = Plan::decode(r.rest()).map_err(|e| ProtocolError::new(e.to_string()))?;
        if plan.problem.reads_c != old_c.is_some() || !alpha.is_finite() || !beta.is_finite() {
            return Err(ProtocolError::new("factors that do not fit the plan"));
        }
        Ok(Self { alpha, beta, a, b, old_c, kernel, plan })
    }
}

/// Adds magic, version, length and digest to the bytes of a head.
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

/// The record of a complete tile.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TileRecord {
    /// Its region in the plan.
    pub region: u8,
    /// Its number in the region.
    pub tile: u64,
    /// Digest of its elements.
    pub digest: Digest128,
}

fn encode(kind: u8, ends: u32, record: &TileRecord) -> [u8; RECORD_BYTES] {
    let mut bytes = [0; RECORD_BYTES];
    bytes[0] = kind;
    bytes[1] = record.region;
    bytes[4..8].copy_from_slice(&ends.to_le_bytes());
    bytes[8..16].copy_from_slice(&record.tile.to_le_bytes());
    bytes[16..].copy_from_slice(&record.digest.0);
    bytes
}

/// Encodes records of tiles with their end record. `ends` counts the end and watermark records before,
/// `records` the tile records including these.
pub fn append(digester: &mut Digester, tiles: &[TileRecord], ends: u32, records: u64) -> Vec<u8> {
    let mut bytes: Vec<u8> = tiles.iter().flat_map(|tile| encode(TILE, ends, tile)).collect();
    digester.update(&bytes);
    bytes.extend(end(digester, END, ends, records));
    bytes
}

/// Encodes a watermark: the data of the first `records` records are on disk.
pub fn mark(digester: &mut Digester, ends: u32, records: u64) -> Vec<u8> {
    end(digester, MARK, ends, records).to_vec()
}

fn end(digester: &mut Digester, kind: u8, ends: u32, records: u64) -> [u8; RECORD_BYTES] {
    let record = TileRecord { region: 0, tile: records, digest: digester.digest() };
    let bytes = encode(kind, ends, &record);
    digester.update(&bytes);
    bytes
}

/// The last record, written when C is complete and about to be renamed: the digest of all of C.
pub fn complete(c: Digest128) -> [u8; RECORD_BYTES] {
    encode(COMPLETE, 0, &TileRecord { region: 0, tile: 0, digest: c })
}

/// The digest in a record that `complete` wrote.
fn completed(bytes: &[u8; RECORD_BYTES]) -> Option<Digest128> {
    let c = Digest128(*bytes.last_chunk()?);
    (*bytes == complete(c)).then_some(c)
}

/// The valid part of a journal.
#[derive(Clone, Debug)]
pub struct Journal {
    /// Identity of the product.
    pub head: Head,
    /// Digests of the complete tiles, by region and number.
    pub tiles: BTreeMap<(usize, u64), Digest128>,
    /// Those tiles whose data may be missing after a power failure.
    pub unsynced: BTreeSet<(usize, u64)>,
    /// Recorded tiles whose data the resumed run found missing or changed: it recomputes them.
    pub missing: BTreeSet<(usize, u64)>,
    /// Digest of all of C, if it was complete and about to be renamed.
    pub c: Option<Digest128>,
    /// Bytes of the file that are valid; a resumed run truncates the rest.
    pub valid_bytes: u64,
    /// Of all valid bytes.
    pub digester: Digester,
    /// End and watermark records.
    pub ends: u32,
    /// Records of tiles.
    pub records: u64,
    /// The first records, whose data are on disk.
    pub durable: u64,
}

/// Parses the bytes of a journal file. An error if its head is not valid.
pub fn read(bytes: &[u8]) -> Result<Journal, ProtocolError> {
    let short = || ProtocolError::new("it is cut short");
    let (start, rest) = bytes.split_first_chunk::<START_BYTES>().ok_or_else(short)?;
    let mut r = FieldReader::new(start);
    if r.array()? != MAGIC {
        return Err(ProtocolError::new("it is not a journal of bramble"));
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
    let recorded = journal.take(records);
    if version == VERSION_WITHOUT_MARKS {
        journal.durable = journal.records;
    }
    // If a tile has several records, the last one counts.
    for (number, tile) in (0..).zip(recorded) {
        if number < journal.durable {
            journal.unsynced.remove(&tile)
        } else {
            journal.unsynced.insert(tile)
        };
    }
    Ok(journal)
}

impl Journal {
    /// Takes records as long as they are valid; returns their tiles in order.
    fn take(&mut self, records: &[u8]) -> Vec<(usize, u64)> {
        let (records, _) = records.as_chunks::<RECORD_BYTES>();
        let mut digester = self.digester.clone();
        let (mut tiles, mut recorded) = (Vec::new(), Vec::new());
        for bytes in records {
            let count = to_u64(tiles.len());
            let Some((kind, record)) = self.record(bytes) else {
                self.c = completed(bytes).filter(|_| count == 0);
                return recorded;
            };
            let is_right = match kind {
                TILE => true,
                END => record.tile == self.records + count,
                _ => count == 0 && (self.durable..=self.records).contains(&record.tile),
            };
            if !is_right || (kind != TILE && record.digest != digester.digest()) {
                return recorded;
            }
            digester.update(bytes);
            if kind == TILE {
                tiles.push(((usize::from(record.region), record.tile), record.digest));
                continue;
            }
            self.digester = digester.clone();
            recorded.extend(tiles.iter().map(|(tile, _)| *tile));
            self.tiles.extend(tiles.drain(..));
            if kind == END {
                self.records = record.tile
            } else {
                self.durable = record.tile
            }
            self.ends += 1;
            self.valid_bytes += (count + 1) * to_u64(RECORD_BYTES);
        }
        recorded
    }

    /// Decodes a record, if it may come next.
    fn record(&self, bytes: &[u8; RECORD_BYTES]) -> Option<(u8, TileRecord)> {
        let mut r = FieldReader::new(bytes);
        let (kind, region, zero) = (r.u8().ok()?, r.u8().ok()?, r.u16().ok()?);
        let (ends, tile, digest) = (r.u32().ok()?, r.u64().ok()?, Digest128(r.array().ok()?));
        let is_tile = || self.head.plan.regions.get(usize::from(region)).is_some_and(|r| tile < r.tiles());
        let is_one = match kind {
            TILE => is_tile(),
            END | MARK => region == 0,
            _ => false,
        };
        // A journal that counts more end records than this is not valid.
        let is_next = ends == self.ends && ends < u32::MAX;
        (is_one && is_next && zero == 0).then_some((kind, TileRecord { region, tile, digest }))
    }
}
