//! Tiles of half the edge, where those of the last panel end a product.

use super::*;

/// 8192 × 8192 × 8192 in f32 by four workers of one thread, for whom the network is what is short.
fn decided(cut: Cut, wish: &Wish) -> Plan {
    let p = Problem { dtype: DType::F32, ..problem(8192, 8192, 8192) };
    let thread = |name| Machine { threads: 1, ..machine(name, 40.0, 8 << 30, 24.4) };
    let nic_bytes_per_s = Some(24.4e6);
    let primary = Machine { nic_bytes_per_s, link: None, gflops: 1.0, ..thread("primary") };
    let wish = Wish { strategy: Some("reuse".parse().unwrap()), ..*wish };
    decide(&p, cut, &primary, &vec![thread("w"); 4], &wish).unwrap().plan
}

/// Rows and columns of a tile, and the orders of all shares.
fn form(plan: &Plan) -> (u64, u64, Vec<Order>) {
    let grid = &plan.regions[0].grid;
    let mut orders: Vec<Order> = plan.members.iter().flat_map(|m| &m.shares).map(|s| s.order).collect();
    orders.dedup();
    (grid.tile_rows, grid.tile_cols, orders)
}

#[test]
fn tiles_have_half_the_edge_where_the_last_ones_end_the_product() {
    let (plan, whole) = (Cut::default(), Cut { tile: Some(512), depth: None });
    let (halves, given) = (decided(plan, &Wish::AUTO), decided(whole, &Wish::AUTO));
    assert_eq!(form(&halves), (256, 256, vec![Order::Corner]));
    assert_eq!(halves.regions[0].grid.depth, given.regions[0].grid.depth);
    assert!(halves.predicted.seconds < given.predicted.seconds);
}

#[test]
fn tiles_keep_an_edge_that_was_given() {
    let given = decided(Cut { tile: Some(512), depth: None }, &Wish::AUTO);
    assert_eq!(form(&given), (512, 512, vec![Order::Corner]));
}

#[test]
fn tiles_do_not_depend_on_the_machines_where_bits_shall_not() {
    let same_bits = decided(Cut::default(), &Wish { reproducible: true, ..Wish::AUTO });
    let (rows, cols, orders) = form(&same_bits);
    assert_eq!((rows, cols), (512, 512));
    // It is not for the order that they stay whole.
    assert_eq!(orders, [Order::Corner]);
}
