//! Parameters of a simulation beside the plan and its machines.

/// Rates of a machine's work other than multiplications, bytes a second, all its threads together.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SimRates {
    /// Additions and subtractions of matrices: bytes read and written.
    pub add_bytes_per_s: f64,
    /// Generation of elements.
    pub fill_bytes_per_s: f64,
}

impl SimRates {
    /// Typical rates: additions are bound by memory, whatever the speed of multiplications.
    pub const USUAL: Self = Self { add_bytes_per_s: 6e9, fill_bytes_per_s: 2e9 };
}

/// Parameters of a simulation.
#[derive(Clone, Debug, PartialEq)]
pub struct SimSetting {
    /// Bandwidth of the primary's network card in each direction; if absent, what its machine states, or
    /// the bandwidth of the fastest link.
    pub primary_bytes_per_s: Option<f64>,
    /// Processor seconds of the primary's event loop for each byte sent or received over a link that moves bytes.
    pub loop_s_per_byte: f64,
    /// The same for each byte of a partial sum that it adds to C.
    pub merge_s_per_byte: f64,
    /// The same at the worker's end, for workers on the primary's cores.
    pub far_s_per_byte: f64,
    /// Seconds for which a worker does not compute at all for each byte that it sends or receives over a link that moves
    /// bytes, in the order of the machines; 0 for machines beyond the end: another core moves their bytes.
    pub moves_s_per_byte: Vec<f64>,
    /// Other rates of each machine, in the order of the machines; beyond the end `USUAL`.
    pub rates: Vec<SimRates>,
    /// Real speed of each machine relative to the stated one, in the order of the machines; beyond the end 1.
    pub speeds: Vec<f64>,
    /// Whether idle machines steal work that a slow machine has not been sent.
    pub steals: bool,
    /// Whether threads order additions by their result, as the worker's threads do; otherwise by their operands, like
    /// multiplications.
    pub additions_first: bool,
    /// Seed for the order of simultaneous events; 0 is the order in which they were scheduled.
    pub seed: u64,
}

impl SimSetting {
    /// The primary's processor costs as measured (docs/cost-model.md).
    pub const fn measured() -> Self {
        Self {
            primary_bytes_per_s: None,
            loop_s_per_byte: 0.45e-9,
            merge_s_per_byte: 0.5e-9,
            far_s_per_byte: 0.4e-9,
            moves_s_per_byte: Vec::new(),
            rates: Vec::new(),
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
