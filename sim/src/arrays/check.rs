//! The reference model of arrays, and the rules that are checked after every call.
//!
//! Place in the flow: `machines.rs` keeps the value of each array beside it, computed from its sources; `client.rs` asks for
//! the rules when a call has ended.
//!
//! Invariants checked: the machines hold exactly what the registry records; each part has the elements of the model and the
//! digest that was recorded; parts cover an array once, unless a machine with one is lost; no machine holds more than its memory.
//!
//! Deliberately absent: the causes of errors (`causes.rs`).

use super::machines::ClientMachines;
use super::matrix::{ArrayMatrix, Elements, digest_of, factor, product, reduced_bytes, scaled_sum, viewed};
use super::world::{ArrayWorld, PartSlot};
use bramble_arrays::{
    ArrayError, ArrayHolders, ArrayOperand, MadeFrom, PlacedArray, PlacedArrays, SumsOfParts, UnfinishedArray,
};
use bramble_matrix::{MatrixInfo, Rect, Reduction, Shape};
use bramble_plan::{PlacedPart, ShardAxis};
use std::collections::BTreeMap;
use std::rc::Rc;

/// The registry of a client.
pub(super) type ClientArrays = PlacedArrays<ArrayMatrix, KeptValue>;

/// What the model knows of an array.
pub(super) struct KeptValue {
    /// Its elements as stored.
    pub(super) value: Elements,
    /// Whether its sources count as far.
    pub(super) is_far: bool,
}

/// A check that has begun.
pub(super) struct ArrayCheck {
    pub(super) value: Elements,
}

/// The elements of an operand as it is used.
pub(super) fn operand_value(operand: &ArrayOperand<ArrayMatrix>, arrays: &ClientArrays) -> Elements {
    let Some(placed) = operand.placed else { return operand.matrix.whole() };
    let Ok(array) = arrays.get::<String>(placed.array) else { panic!("violation: an operand is not placed") };
    let kept = &array.kept;
    if !placed.transposed {
        return kept.value.clone();
    }
    let stored = array.layout.shape.rect();
    Rc::new(viewed(stored, &kept.value, stored.transposed(), true))
}

/// The elements of a result, computed from those of its operands.
pub(super) fn expected(made: &MadeFrom<ArrayMatrix>, arrays: &ClientArrays) -> Elements {
    let operands = made.operands();
    let values: Vec<Elements> = operands.iter().map(|operand| operand_value(operand, arrays)).collect();
    let value = match made {
        MadeFrom::Product { alpha, a, b, plus } => {
            let (left, right) = (a.matrix.shape(), b.matrix.shape());
            let sides = [left.rows, left.cols, right.cols];
            let made = product(factor(*alpha), sides, &values[0], &values[1]);
            match plus {
                Some((beta, _)) => scaled_sum(1, &made, Some((factor(*beta), &values[2]))),
                None => made,
            }
        }
        MadeFrom::Sum { x: (alpha, _), y } => {
            let y = y.as_ref().map(|(beta, _)| (factor(*beta), &values[1][..]));
            scaled_sum(factor(*alpha), &values[0], y)
        }
    };
    Rc::new(value)
}

impl ArrayCheck {
    /// Compares the sums of all parts with those of the model; the lines that were compared.
    pub(super) fn compare(
        &self,
        sums: &SumsOfParts,
        array: &PlacedArray<ArrayMatrix, KeptValue>,
        holders: &ArrayHolders,
        machines: &ClientMachines,
    ) -> Result<u64, ArrayError<String>> {
        let shape = array.layout.shape;
        let mut lines = 0;
        for part in &array.layout.parts {
            let Some(machine) = holders.with_connection(array.holders[part.machine]) else { continue };
            let Rect { rows, cols } = part.rect;
            let Some([row_sums, col_sums]) = sums.get(&(machine, rows.start, cols.start)) else {
                panic!("violation: {} has a part without sums at {}", array.name, holders.name(machine));
            };
            assert!(row_sums.0 == rows && col_sums.0 == cols, "violation: sums of other lines");
            let own = viewed(shape.rect(), &self.value, part.rect, false);
            let is_right = row_sums.1 == reduced_bytes(Reduction::RowSum, part.rect, &own)
                && col_sums.1 == reduced_bytes(Reduction::ColSum, part.rect, &own);
            lines += rows.len();
            if !is_right {
                let name = holders.name(machine);
                machines.world.borrow_mut().tell(|| format!("  {} has a wrong part on {name}", array.name));
                return Err(ArrayError::Wrong(format!(
                    "{} is wrong: {name} has computed wrongly",
                    array.name
                )));
            }
        }
        Ok(lines)
    }
}

/// A part that the registry records, and where.
struct RecordedPlace {
    connection: u64,
    part: PlacedPart,
    number: u64,
}

/// The parts that are recorded of an array.
fn places(array: &PlacedArray<ArrayMatrix, KeptValue>) -> Vec<RecordedPlace> {
    assert!(
        array.layout.parts.len() == array.parts.len(),
        "violation: {} has parts without numbers",
        array.name
    );
    let of = |(part, recorded): (&PlacedPart, &bramble_arrays::RecordedPart)| RecordedPlace {
        connection: array.holders[part.machine],
        part: *part,
        number: recorded.number,
    };
    array.layout.parts.iter().zip(&array.parts).map(of).collect()
}

/// Whether a part of an array that can still be reached was corrupted where it lies.
pub(super) fn is_corrupted(array: &PlacedArray<ArrayMatrix, KeptValue>, world: &ArrayWorld) -> bool {
    places(array).iter().any(|place| world.corrupted.contains(&(place.connection, place.number)))
}

/// Checks the rules for one client, none of whose operations is under way. An unfinished array is at machines, too.
pub(super) fn check_rules(
    (arrays, unfinished): (&ClientArrays, Option<&UnfinishedArray>),
    client: usize,
    world: &ArrayWorld,
) {
    let mut recorded: BTreeMap<u64, Vec<u64>> = BTreeMap::new();
    for id in arrays.ids() {
        let Ok(array) = arrays.get::<String>(id) else { continue };
        check_array(array, world);
        for place in places(array) {
            recorded.entry(place.connection).or_default().push(place.number);
        }
    }
    let unfinished = unfinished.map(UnfinishedArray::numbers).unwrap_or_default();
    for (connection, numbers) in &unfinished {
        recorded.entry(*connection).or_default().extend(numbers);
    }
    for (connection, store) in world.stores.iter().filter(|(_, store)| store.client == client) {
        let being_made = unfinished.get(connection).map(Vec::as_slice).unwrap_or_default();
        let mut known = recorded.remove(connection).unwrap_or_default();
        known.sort_unstable();
        let held: Vec<u64> = store.slots.keys().copied().collect();
        let name = &world.machines[store.machine].name;
        assert!(held == known, "violation: {name} holds {held:?}, and the client knows of {known:?}");
        let is_right = |(number, slot): (&u64, &PartSlot)| match slot {
            PartSlot::Complete { .. } => true,
            PartSlot::Making { .. } => being_made.contains(number),
            PartSlot::Arriving { .. } | PartSlot::Refused => false,
        };
        let complete = store.slots.iter().all(is_right);
        assert!(complete, "violation: a part at {name} is not complete");
    }
    for (at, machine) in world.machines.iter().enumerate() {
        let held = world.held_bytes(at);
        assert!(held <= machine.memory_bytes, "violation: {} holds {held} bytes", machine.name);
    }
}

/// Checks the parts of one array.
fn check_array(array: &PlacedArray<ArrayMatrix, KeptValue>, world: &ArrayWorld) {
    let (name, shape) = (&array.name, array.layout.shape);
    let all = places(array);
    assert!(!all.is_empty(), "violation: {name} has no part");
    let is_whole = match array.layout.axis {
        None => all.iter().all(|place| place.part.rect == shape.rect()),
        Some(axis) => covers(&all, shape, axis),
    };
    assert!(is_whole, "violation: the parts of {name} do not cover it in order: {:?}", array.layout.parts);
    for (place, recorded) in all.iter().zip(&array.parts) {
        let Some(store) = world.stores.get(&place.connection) else { continue };
        let machine = &world.machines[store.machine].name;
        let Some(PartSlot::Complete { rect, dtype, elements, .. }) = store.slots.get(&place.number) else {
            panic!("violation: part {} of {name} is not at {machine}", place.number);
        };
        let is_same = *rect == place.part.rect && *dtype == array.layout.dtype;
        assert!(is_same, "violation: part {} of {name} at {machine} is {rect}", place.number);
        if world.corrupted.contains(&(place.connection, place.number)) {
            continue;
        }
        assert!(
            digest_of(rect.shape(), elements) == recorded.digest,
            "violation: part {} of {name} at {machine} has another digest than was recorded",
            place.number
        );
    }
    if let Some((number, rect, machine)) = first_wrong(array, world) {
        panic!("violation: part {number} of {name} at {machine} has wrong elements in {rect}");
    }
}

/// The first part with other elements than the model has, of those that can be reached and were not corrupted: its number,
/// rectangle and machine.
pub(super) fn first_wrong(
    array: &PlacedArray<ArrayMatrix, KeptValue>,
    world: &ArrayWorld,
) -> Option<(u64, Rect, String)> {
    places(array).into_iter().find_map(|place| {
        let store = world.stores.get(&place.connection)?;
        let PartSlot::Complete { rect, elements, .. } = store.slots.get(&place.number)? else { return None };
        let is_known = !world.corrupted.contains(&(place.connection, place.number));
        let own = viewed(array.layout.shape.rect(), &array.kept.value, *rect, false);
        let is_wrong = is_known && own != **elements;
        is_wrong.then(|| (place.number, *rect, world.machines[store.machine].name.clone()))
    })
}

/// Whether parts lie one after another, and cover the whole matrix.
fn covers(all: &[RecordedPlace], shape: Shape, axis: ShardAxis) -> bool {
    let whole = shape.rect();
    let mut reached = 0;
    for place in all {
        let Rect { rows, cols } = place.part.rect;
        let (along, across, wanted) = match axis {
            ShardAxis::Rows => (rows, cols, whole.cols),
            ShardAxis::Cols => (cols, rows, whole.rows),
        };
        if along.start != reached || along.is_empty() || across != wanted {
            return false;
        }
        reached = along.end;
    }
    reached == if axis == ShardAxis::Rows { shape.rows } else { shape.cols }
}
