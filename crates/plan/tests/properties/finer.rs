//! Tiles of half the edge, if the tiles of the last panel end a product.

use super::*;

/// 8192 × 8192 × 8192 in f32 by four workers of one thread, limited by the network.
fn decided(cut: TileSize, options: &PlanOptions) -> Plan {
    let p = Problem { dtype: DType::F32, ..problem(8192, 8192, 8192) };
    let thread = |name| Machine { threads: 1, ..machine(name, 40.0, 8 << 30, 24.4) };
    let nic_bytes_per_s = Some(24.4e6);
    let primary = Machine { nic_bytes_per_s, link: None, gflops: 1.0, ..thread("primary") };
    let options = PlanOptions { strategy: Some("reuse".parse().unwrap()), ..*options };
    decide(&p, cut, &primary, &vec![thread("w"); 4], &options).unwrap().plan
}

/// Rows and columns of a tile, and the orders of all shares.
fn form(plan: &Plan) -> (u64, u64, Vec<PanelOrder>) {
    let grid = &plan.regions[0].grid;
    let mut orders: Vec<PanelOrder> = plan.members.iter().flat_map(|m| &m.shares).map(|s| s.order).collect();
    orders.dedup();
    (grid.tile_rows, grid.tile_cols, orders)
}

#[test]
fn tiles_have_half_the_edge_where_the_last_ones_end_the_product() {
    let (plan, whole) = (TileSize::default(), TileSize { tile: Some(512), depth: None });
    let (halves, given) = (decided(plan, &PlanOptions::AUTO), decided(whole, &PlanOptions::AUTO));
    assert_eq!(form(&halves), (256, 256, vec![PanelOrder::Corner]));
    assert_eq!(halves.regions[0].grid.depth, given.regions[0].grid.depth);
    assert!(halves.predicted.seconds < given.predicted.seconds);
}

#[test]
fn tiles_keep_an_edge_that_was_given() {
    let given = decided(TileSize { tile: Some(512), depth: None }, &PlanOptions::AUTO);
    assert_eq!(form(&given), (512, 512, vec![PanelOrder::Corner]));
}

#[test]
fn tiles_do_not_depend_on_the_machines_where_bits_shall_not() {
    let same_bits = decided(TileSize::default(), &PlanOptions { reproducible: true, ..PlanOptions::AUTO });
    let (rows, cols, orders) = form(&same_bits);
    assert_eq!((rows, cols), (512, 512));
    // The order is not the reason that they stay whole.
    assert_eq!(orders, [PanelOrder::Corner]);
}
