//! Products with a placed operand, with the workers' state machine at the other end.

use crate::primary::{
    Operands, Outgoing, PartLost, PeerInfo, Primary, PrimaryAction, PrimaryEvent, Referred, UnplacedOperand,
    Which,
};
use crate::worker::{StartLimits, Worker, WorkerAction, WorkerEvent};
use alloc::collections::{BTreeMap, VecDeque};
use bramble_base::{DType, Layout, Rect, Shape};
use bramble_plan::{
    ArrayLayout, LinkRate, Machine, OperandSource, Ownership, PartHolder, Placement, Plan, PlanOptions,
    Problem, ShardAxis, ShardUnits, TileSize, decide_resident,
};
use bramble_wire::message::{MatrixSource, ResultHead};
use core::time::Duration;

const GRANT: u64 = 32 << 20;

fn machine(name: &str, gflops: f64) -> Machine {
    Machine {
        name: name.into(),
        threads: 2,
        gflops,
        peak_gflops: gflops,
        memory_bytes: GRANT,
        link: Some(LinkRate { bytes_per_s: 1e8, round_trip_s: 1e-4 }),
        shares_cores: false,
        nic_bytes_per_s: None,
        memory_rate: None,
    }
}

/// x (700 × 1500) times a placed 1500 × 1300 on three machines.
fn plan(axis: Option<ShardAxis>) -> Plan {
    let workers = [machine("fast", 4.0), machine("middle", 2.0), machine("slow", 1.0)];
    let holder = |m: &Machine| PartHolder { name: m.name.clone(), gflops: m.gflops, memory_bytes: u64::MAX };
    let holders: Vec<PartHolder> = workers.iter().map(holder).collect();
    let placement = axis.map_or(Placement::Replicate, |axis| Placement::Shard(axis, ShardUnits::BySpeed));
    let layout = ArrayLayout::new(Shape::new(1500, 1300), DType::F64, &placement, &holders).unwrap();
    let ownership = Ownership::of_right(&layout, false, &|worker| Some(worker + 1)).unwrap();
    let (a_source, b_source) = (OperandSource::Sent, OperandSource::Resident);
    let p = Problem { m: 700, n: 1300, k: 1500, dtype: DType::F64, reads_c: false, a_source, b_source };
    let cut = TileSize { tile: Some(128), depth: Some(256) };
    decide_resident(&p, &ownership, cut, &machine("primary", 1.0), &workers, &PlanOptions::AUTO).unwrap().plan
}

struct Cluster {
    primary: Primary,
    workers: Vec<Option<Worker>>,
    /// Rows of tiles, by peer and id.
    rows: BTreeMap<(usize, u32), u32>,
    todo: VecDeque<PrimaryAction>,
    sent: Vec<(usize, Outgoing)>,
    committed: u64,
    outcome: Option<Result<(), String>>,
    now: Duration,
}

impl Cluster {
    fn new(plan: Plan) -> Self {
        Self::with(plan, [None; 2])
    }

    /// With a primary that can read the placed operand.
    fn reading(plan: Plan) -> Self {
        let b = UnplacedOperand { layout: Layout::ColMajor, source: OperandSource::Sent };
        Self::with(plan, [None, Some(b)])
    }

    fn with(plan: Plan, unplaced: [Option<UnplacedOperand>; 2]) -> Self {
        let operands = Operands {
            a_layout: Layout::RowMajor,
            b_layout: Layout::RowMajor,
            a_source: plan.problem.a_source,
            b_source: plan.problem.b_source,
            unplaced,
            reads_c: false,
        };
        let plan = Plan { relay: false, ..plan };
        let info = |at: usize| PeerInfo {
            name: format!("w{at}"),
            credit_bytes: GRANT,
            shares_memory: false,
            referred: Referred::default(),
            neighbours: Vec::new(),
            work_per_s: 1e9,
            link_bytes_per_s: Some(1e8),
            is_reserve: false,
        };
        let peers = plan.members.len();
        let worker = |_| Some(Worker::new(GRANT, StartLimits::for_threads(2)));
        Self {
            primary: Primary::new(plan, operands, (0..peers).map(info).collect()).recovering(),
            workers: (0..peers).map(worker).collect(),
            rows: BTreeMap::new(),
            todo: VecDeque::new(),
            sent: Vec::new(),
            committed: 0,
            outcome: None,
            now: Duration::ZERO,
        }
    }

    fn tell(&mut self, event: PrimaryEvent) {
        self.now += Duration::from_millis(3);
        let actions = self.primary.handle(event, self.now);
        self.primary.validate();
        self.todo.extend(actions);
    }

    /// Runs to the end; `dies`: this peer is lost once it has been sent that many messages.
    fn run(&mut self, dies: Option<(usize, usize)>) {
        let mut left = dies;
        self.tell(PrimaryEvent::Start);
        while let Some(action) = self.todo.pop_front() {
            match action {
                PrimaryAction::Send(peer, message) => self.deliver(peer, message),
                PrimaryAction::Committed(_) => self.committed += 1,
                PrimaryAction::Finished => self.outcome = Some(Ok(())),
                PrimaryAction::Fail(why) => self.outcome = Some(Err(why)),
                PrimaryAction::Merge { .. } | PrimaryAction::Put { .. } | PrimaryAction::Ping(..) => {}
                other => panic!("{other:?}"),
            }
            if let Some((peer, count)) = left
                && self.sent.iter().filter(|(to, _)| *to == peer).count() >= count
            {
                left = None;
                self.workers[peer] = None;
                self.tell(PrimaryEvent::Lost { peer, why: "unplugged".into() });
            }
        }
    }

    fn deliver(&mut self, peer: usize, message: Outgoing) {
        self.sent.push((peer, message.clone()));
        let head = &message.head;
        self.rows.extend(head.matrices.iter().map(|m| ((peer, m.id), m.rows)));
        let Some(worker) = &mut self.workers[peer] else { return };
        let mut actions = VecDeque::from(worker.handle(WorkerEvent::Announced(head)).unwrap());
        actions.extend(worker.handle(WorkerEvent::Landed(head)).unwrap());
        self.tell(PrimaryEvent::Sent { peer, bytes: message.wire_bytes() });
        while let Some(action) = actions.pop_front() {
            let Some(worker) = &mut self.workers[peer] else { return };
            match action {
                WorkerAction::Start(run) => {
                    actions.extend(worker.handle(WorkerEvent::Finished(&run.job)).unwrap())
                }
                WorkerAction::Return { tile, epoch, step_start, step_end } => {
                    actions.extend(worker.handle(WorkerEvent::Returned(tile)).unwrap());
                    let lines = self.rows[&(peer, tile)];
                    let head = ResultHead { c: tile, epoch, step_start, step_end, first_line: 0, lines };
                    assert!(self.primary.expect(peer, &head).is_ok());
                    self.tell(PrimaryEvent::Landed { peer, head });
                }
                WorkerAction::Credit(bytes) => self.tell(PrimaryEvent::Credit { peer, bytes }),
                WorkerAction::Reserve(_) | WorkerAction::Release(_) => {}
                other => panic!("{other:?}"),
            }
        }
    }

    /// Every view that a peer was sent lies in its part; returns the rectangles of the placed operand that were sent with
    /// their elements, by peer.
    fn assert_views_are_owned(&self) -> Vec<(usize, Rect)> {
        let plan = self.primary.plan();
        let Some(Ownership::Cut(_, spans)) = &plan.ownership else { return Vec::new() };
        let (mut views, mut sent) = (0, Vec::new());
        for (peer, message) in &self.sent {
            let Some(piece) = message.piece.filter(|piece| piece.which == Which::B) else { continue };
            let header = message.head.matrices.last().unwrap();
            if header.source == MatrixSource::Data {
                assert_eq!(header.layout, Layout::ColMajor, "the layout of the primary's matrix");
                sent.push((*peer, piece.rect));
                continue;
            }
            assert_eq!((header.source, piece.bytes), (MatrixSource::Resident, 32));
            let owned = spans.iter().find(|owned| owned.machine == plan.members[*peer].machine).unwrap().span;
            let is_inside = |span: bramble_base::Span| span.intersect(owned) == span;
            assert!(is_inside(piece.rect.rows) || is_inside(piece.rect.cols), "{piece:?} at {peer}");
            views += 1;
        }
        assert!(views > 0);
        sent
    }
}

#[test]
fn a_product_with_a_placed_operand_sends_only_the_other_one() {
    for axis in [Some(ShardAxis::Cols), Some(ShardAxis::Rows), None] {
        let mut cluster = Cluster::new(plan(axis));
        cluster.run(None);
        assert_eq!((cluster.outcome.clone(), cluster.primary.part_lost()), (Some(Ok(())), None));
        assert_eq!(cluster.committed, cluster.primary.plan().tiles());
        cluster.assert_views_are_owned();
        // x goes to each owner of columns whole, and to each owner of steps in part.
        let bytes: usize = cluster
            .sent
            .iter()
            .filter_map(|(_, m)| m.piece)
            .filter(|p| p.which == Which::A)
            .map(|p| p.bytes)
            .sum();
        let x = 700 * 1500 * 8;
        // Once to each owner of columns, or for each block of columns.
        assert!(bytes >= x && bytes <= 3 * x && (axis.is_none() || bytes.is_multiple_of(x)), "{bytes}");
        let moves = cluster.primary.moves();
        assert!(axis.is_none() || moves == 0, "{moves} moves of pinned work");
    }
}

#[test]
fn the_loss_of_an_owner_of_unfinished_tiles_fails_the_product_and_names_it() {
    for axis in [ShardAxis::Cols, ShardAxis::Rows] {
        let mut cluster = Cluster::new(plan(Some(axis)));
        cluster.run(Some((1, 5)));
        let Some(Err(why)) = &cluster.outcome else { panic!("{:?}", cluster.outcome) };
        assert!(why.contains("worker w1 was lost (unplugged); its unfinished tiles need its part"), "{why}");
        assert_eq!(cluster.primary.part_lost(), Some(PartLost { peer: 1 }));
        cluster.assert_views_are_owned();
    }
}

#[test]
fn the_others_are_sent_the_panels_of_a_lost_part_that_the_primary_can_read() {
    for axis in [ShardAxis::Cols, ShardAxis::Rows] {
        let mut cluster = Cluster::reading(plan(Some(axis)));
        cluster.run(Some((1, 5)));
        assert_eq!((cluster.outcome.clone(), cluster.primary.part_lost()), (Some(Ok(())), None));
        assert_eq!(cluster.committed, cluster.primary.plan().tiles());
        // One piece for each of two machines: each further piece would take its panels along.
        assert!(cluster.primary.moves() <= 2, "{} pieces", cluster.primary.moves());
        let sent = cluster.assert_views_are_owned();
        let plan = cluster.primary.plan();
        let Some(Ownership::Cut(_, spans)) = &plan.ownership else { panic!("{:?}", plan.ownership) };
        let lost = spans.iter().find(|owned| owned.machine == plan.members[1].machine).unwrap().span;
        assert!(!sent.is_empty());
        for (peer, rect) in sent {
            let along = if axis == ShardAxis::Cols { rect.cols } else { rect.rows };
            assert!(peer != 1 && along.intersect(lost) == along, "{rect} at {peer}");
        }
    }
}

#[test]
fn wrong_tiles_of_an_owner_can_be_recomputed_by_others_that_are_sent_its_part() {
    let cluster = Cluster::new(plan(Some(ShardAxis::Cols)));
    assert!(!cluster.primary.has_workers_besides(&[0]));
    let cluster = Cluster::reading(plan(Some(ShardAxis::Cols)));
    assert!(cluster.primary.has_workers_besides(&[0]) && !cluster.primary.has_workers_besides(&[0, 1, 2]));
}

#[test]
fn the_loss_of_an_owner_whose_tiles_are_complete_changes_nothing() {
    let mut whole = Cluster::new(plan(Some(ShardAxis::Cols)));
    whole.run(None);
    let last = |peer: usize| whole.sent.iter().filter(|(to, _)| *to == peer).count();
    let mut cluster = Cluster::new(plan(Some(ShardAxis::Cols)));
    // After its last message every job runs at once, so all its tiles are back.
    cluster.run(Some((0, last(0))));
    assert_eq!((cluster.outcome.clone(), cluster.primary.part_lost()), (Some(Ok(())), None));
}

#[test]
fn a_lost_replica_is_replaced_by_the_others() {
    let mut cluster = Cluster::new(plan(None));
    cluster.run(Some((0, 3)));
    assert_eq!(cluster.outcome, Some(Ok(())));
    assert_eq!(cluster.committed, cluster.primary.plan().tiles());
    assert!(cluster.primary.moves() > 0);
}

#[test]
fn a_worker_that_joins_gets_no_pinned_work() {
    let mut cluster = Cluster::new(plan(Some(ShardAxis::Cols)));
    let info = PeerInfo {
        name: "late".into(),
        credit_bytes: GRANT,
        shares_memory: false,
        referred: Referred::default(),
        neighbours: Vec::new(),
        work_per_s: 1e12,
        link_bytes_per_s: Some(1e9),
        is_reserve: false,
    };
    cluster.workers.push(Some(Worker::new(GRANT, StartLimits::for_threads(2))));
    cluster.tell(PrimaryEvent::Joined(info));
    cluster.run(None);
    assert_eq!(cluster.outcome, Some(Ok(())));
    assert!(cluster.sent.iter().all(|(peer, _)| *peer < 3));
    assert!(!cluster.primary.has_workers_besides(&[0]), "only the owner could recompute a tile");
}
