//! What a simulation is told beyond the plan and its machines.

use bramble_plan::Machine;

/// What a machine does beside multiplying, bytes a second, all its threads together.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Pace {
    /// Additions and subtractions of matrices: bytes read and written.
    pub add_bytes_per_s: f64,
    /// Generated elements.
    pub fill_bytes_per_s: f64,
}

/// Operations of a kernel that take as long as one addition, which memory bounds.
const FLOPS_AN_ADDITION: f64 = 80.0;

impl Pace {
    /// What machines with that speed of multiplying have about, for elements of so many bytes.
    pub fn of(machine: &Machine, element_bytes: u64) -> Self {
        let additions_per_s = machine.gflops * 1e9 / FLOPS_AN_ADDITION;
        let element = element_bytes as f64;
        Self { add_bytes_per_s: additions_per_s * 3.0 * element, fill_bytes_per_s: additions_per_s * element }
    }
}

/// What a simulation is told beyond the plan and its machines.
#[derive(Clone, Debug, PartialEq)]
pub struct Setting {
    /// What the primary can send, and at the same time receive; without it, as much as the fastest of its links.
    pub primary_bytes_per_s: Option<f64>,
    /// Processor seconds for each byte that the primary's event loop sends or receives over a link that moves bytes.
    pub loop_s_per_byte: f64,
    /// The same for each byte of a sum that it adds to C.
    pub merge_s_per_byte: f64,
    /// The same at the other end of a link, where that is on the primary's cores.
    pub far_s_per_byte: f64,
    /// What each machine does beside multiplying, in the order of the machines; where it ends, `Pace::of`.
    pub paces: Vec<Pace>,
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
            paces: Vec::new(),
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
