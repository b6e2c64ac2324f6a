//! What a simulation is told beyond the plan and its machines.

/// What a machine does beside multiplying, bytes a second, all its threads together.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Pace {
    /// Additions and subtractions of matrices: bytes read and written.
    pub add_bytes_per_s: f64,
    /// Generated elements.
    pub fill_bytes_per_s: f64,
}

impl Pace {
    /// What machines have about: additions are bound by memory, whatever the speed of multiplying.
    pub const USUAL: Self = Self { add_bytes_per_s: 6e9, fill_bytes_per_s: 2e9 };
}

/// What a simulation is told beyond the plan and its machines.
#[derive(Clone, Debug, PartialEq)]
pub struct Setting {
    /// What the primary can send, and at the same time receive; without it, what the machine says of itself, or as
    /// much as the fastest of its links.
    pub primary_bytes_per_s: Option<f64>,
    /// Processor seconds for each byte that the primary's event loop sends or receives over a link that moves bytes.
    pub loop_s_per_byte: f64,
    /// The same for each byte of a sum that it adds to C.
    pub merge_s_per_byte: f64,
    /// The same at the other end of a link, where that is on the primary's cores.
    pub far_s_per_byte: f64,
    /// Seconds that a worker does not compute for each byte that it sends or receives over a link that moves bytes, with all
    /// that it has, in the order of the machines; where it ends, none: another core moves them.
    pub moves_s_per_byte: Vec<f64>,
    /// What each machine does beside multiplying, in the order of the machines; where it ends, `Pace::USUAL`.
    pub paces: Vec<Pace>,
    /// How fast each machine multiplies, of what it said, in the order of the machines; where it ends, as it said.
    pub speeds: Vec<f64>,
    /// Whether work that a slow machine has not been sent goes to others.
    pub steals: bool,
    /// Whether threads take additions by what they make, as the worker's threads do; else like products, by their operands.
    pub additions_first: bool,
    /// In which order things happen that happen at the same time; 0 is the order in which they were begun.
    pub seed: u64,
}

impl Setting {
    /// The primary's processor as it was measured (docs/cost-model.md).
    pub const fn measured() -> Self {
        Self {
            primary_bytes_per_s: None,
            loop_s_per_byte: 0.45e-9,
            merge_s_per_byte: 0.5e-9,
            far_s_per_byte: 0.4e-9,
            moves_s_per_byte: Vec::new(),
            paces: Vec::new(),
            speeds: Vec::new(),
            steals: true,
            additions_first: true,
            seed: 0,
        }
    }

    /// A primary that moves and adds bytes in no time.
    pub const fn ideal() -> Self {
        let mut ideal = Self::measured();
        ideal.loop_s_per_byte = 0.0;
        ideal.merge_s_per_byte = 0.0;
        ideal.far_s_per_byte = 0.0;
        ideal
    }
}
