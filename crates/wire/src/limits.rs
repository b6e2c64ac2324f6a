//! Every limit of the protocol, with the relations between them.

use core::time::Duration;

/// Version of the protocol. Both ends must have the same.
pub const PROTOCOL: u16 = 6;
/// Longest body of a frame: control is never stuck behind more than this.
pub const CHUNK_BYTES_MAX: usize = 1 << 20;
/// Longest head of a frame.
pub const HEAD_BYTES_MAX: usize = (1 << 16) - 1;
/// Longest text in a message.
pub const TEXT_BYTES_MAX: usize = 255;
/// Bytes that may wait in one link before the schedule gives it more.
pub const LINK_WINDOW_BYTES: usize = 4 << 20;
/// Bytes that a matrix header takes.
pub const MATRIX_HEADER_BYTES: usize = 24;
/// Bytes that a job takes.
pub const JOB_BYTES: usize = 24;
/// Maximum matrices in one message.
pub const MATRICES_MAX: usize = 1280;
/// Maximum jobs in one message.
pub const JOBS_MAX: usize = 1280;
/// Maximum relay orders in one message.
pub const FORWARDS_MAX: usize = 4096;
/// Maximum other workers that one is introduced to in a session.
pub const NEIGHBOURS_MAX: usize = 64;
/// Most rows of a system of equations on several machines: their count fits 32 bits, and their bytes 64.
pub const LU_ORDER_MAX: usize = 1 << 22;
/// Most block columns of such a system; their owners fit a head.
pub const LU_BLOCKS_MAX: usize = 1 << 15;
/// Most columns of a block, and most right-hand sides; their pivots fit a head, and a row of them a frame.
pub const LU_WIDTH_MAX: usize = 4096;
/// Bytes of a panel in one frame: the next machine begins to pass them on when they are there.
pub const LU_FRAME_BYTES: usize = 1 << 18;
/// Most panels that a machine of a factorisation keeps.
pub const LU_LIVE_MAX: usize = 16;
/// Most requests for rows of the factors that a worker has not answered; each answer is a frame.
pub const LU_FETCHES_MAX: usize = 4;
/// Longest time in which a worker solves its part of a system for right-hand sides: the most of them, on a slow machine.
pub const LU_ANSWER_MAX: Duration = Duration::from_secs(1200);
/// Most machines that factor a system together; each but two is a neighbour of two others.
pub const LU_MACHINES_MAX: usize = 64;
/// A member that waits for credit this long, with half of its memory retained for other members, drops the
/// oldest of these panels.
pub const HELD_UP_AFTER: Duration = Duration::from_millis(200);
/// Time for two workers to connect; after that, the primary sends them everything itself.
pub const NEIGHBOURS_DEADLINE: Duration = Duration::from_secs(3);
/// Bytes of tiles that a worker computes ahead of its link: an eighth of a second of 1 Gbit/s, and about what a
/// large cache may still hold when the tile is sent.
pub const UNSENT_BYTES_MAX: u64 = 16 << 20;
/// Tiles for each compute thread that may be ahead of the link, however large they are.
pub const UNSENT_TILES_PER_THREAD: usize = 4;
/// Brief additions for each compute thread that may start: twice as many as a thread does between two reports
/// of its results, because the worker's event loop may be busy.
pub const BRIEF_ADDITIONS_PER_THREAD: usize = 32;
/// The same for additions of unknown length: the one that runs, and three while the event loop is busy.
pub const LONG_ADDITIONS_PER_THREAD: usize = 4;
/// Maximum rows or columns of a stored matrix. Besides, a line must fit a frame: at most `CHUNK_BYTES_MAX`
/// bytes.
pub const SIDE_MAX: u32 = 1 << 20;
/// Maximum concurrent sessions of a worker.
pub const SESSIONS_MAX: usize = 16;
/// Least memory for which a session is opened, if the product could use more.
pub const GRANT_BYTES_MIN: u64 = 1 << 20;
/// Threads in a goodbye.
pub const THREADS_MAX: usize = 2000;
/// Bytes of a goodbye without its threads.
pub const BYE_BYTES: usize = 66;
/// Bytes of each thread in a goodbye.
pub const BYE_THREAD_BYTES: usize = 32;
/// Maximum thread records in one log message.
pub const LOG_RECORDS_MAX: usize = 1024;
/// Bytes of a log message before its records.
pub const LOG_BYTES: usize = 10;
/// Bytes of each record in a log message.
pub const LOG_RECORD_BYTES: usize = 28;
/// Records that a worker buffers until they can be sent; further ones are dropped and counted.
pub const LOG_WAITING_MAX: usize = 16 << 10;
/// Interval between two log messages of a worker.
pub const LOG_EVERY: Duration = Duration::from_millis(100);
/// Upper limit of any clock in a message, in nanoseconds: more than a century, and the sum of two fits 63
/// bits.
pub const CLOCK_NS_MAX: u64 = 1 << 62;
/// Maximum arrays of which a worker holds parts for one connection.
pub const ARRAYS_MAX: usize = 4096;
/// Maximum reductions that a primary may ask for in a session before the first is answered.
pub const REDUCTIONS_MAX: usize = 4;
/// Depth of the slices in which a worker adds up a product that it makes: its bits do not depend on where the depth is cut.
pub const SLICE_DEPTH: u64 = bramble_plan::LATTICE;
/// Most make messages that a worker may have at a time.
pub const MAKINGS_MAX: usize = 4;
/// Most fetch messages for one neighbour that a worker may have at a time.
pub const FETCHES_MAX: usize = 16;
/// Minimum charges of matrices and jobs, which bound the number of both that a worker has to remember.
pub use bramble_plan::{MATRIX_BYTES_MIN, USE_BYTES};

/// Longest head of a frame before the peer has sent hello or welcome: with its header, 1 KiB.
pub const STRANGER_HEAD_BYTES_MAX: usize = 1008;
/// Maximum concurrent connections that are not authenticated; a new one beyond that closes the oldest.
pub const STRANGERS_MAX: usize = 64;
/// The same for one address, or one /64 of IPv6.
pub const STRANGERS_PER_ADDRESS_MAX: usize = 16;
/// Connections accepted per second, even if only to be closed: about 10 microseconds each.
pub const ACCEPTS_PER_S_MAX: u32 = 4000;
/// Long-term connections per second of one address that proceed to TLS, which costs half a millisecond.
pub const ACCEPTS_PER_ADDRESS_PER_S_MAX: u32 = 200;
/// A frame that has begun may stall this long.
pub const STALL_MAX: Duration = Duration::from_secs(20);
/// Minimum rate of a frame over `RATE_WINDOW`.
pub const BYTES_PER_S_MIN: u64 = 4 << 10;
/// Window for `BYTES_PER_S_MIN`.
pub const RATE_WINDOW: Duration = Duration::from_secs(30);
/// Time in which workers must dial in, if the user sets no other.
pub const AWAIT_DEADLINE: Duration = Duration::from_secs(120);
/// Maximum that a user may set for `AWAIT_DEADLINE`.
pub const AWAIT_MAX: Duration = Duration::from_secs(24 * 3600);
/// A worker that has dialled an authenticated primary waits this long for the hello, because the primary
/// waits for its other workers. A connection to a dead primary ends sooner (`tune` in `link/src/tcp/mod.rs`).
pub const DIALLED_HELLO_PATIENCE: Duration = Duration::from_secs(24 * 3600 + 60);
/// A primary that has dialled and authenticated may take this long for its hello: it waits for its other
/// workers and measures itself.
pub const HELLO_PATIENCE: Duration = Duration::from_secs(150);
/// Time for TLS and authentication together; without a key, time for the hello.
pub const HANDSHAKE_DEADLINE: Duration = Duration::from_secs(5);
/// Time for the welcome: the worker opens and measures its kernels first, which takes a loaded small board a
/// few seconds.
pub const WELCOME_DEADLINE: Duration = Duration::from_secs(10);
/// Silence in either direction after which the primary sends a heartbeat.
pub const PING_AFTER: Duration = Duration::from_secs(2);
/// Silence after which the primary drops a worker. By then four heartbeats are unanswered, and the product
/// waits for its work.
pub const SILENCE_MAX: Duration = Duration::from_secs(8);
/// Interval of heartbeats between workers that have nothing else to send.
pub const NEIGHBOUR_BEAT: Duration = Duration::from_secs(1);
/// Silence after which a worker closes its link to another worker, and the primary sends the missing lines.
/// It exceeds `SILENCE_MAX`, so the primary detects a dead machine first and reports that machine, not its
/// links.
pub const NEIGHBOUR_SILENCE_MAX: Duration = Duration::from_secs(10);
/// Silence after which a worker drops its primary, or another worker whose announced panel does not arrive.
/// It is long because the primary may be waiting for its disk.
pub const PRIMARY_SILENCE_MAX: Duration = Duration::from_secs(22);

/// Lines of `line_bytes` that one frame carries.
pub fn lines_per_frame(line_bytes: usize) -> u32 {
    u32::try_from((CHUNK_BYTES_MAX / line_bytes.max(1)).max(1)).unwrap_or(u32::MAX)
}

const _: () = {
    assert!(4 + MATRICES_MAX * MATRIX_HEADER_BYTES + JOBS_MAX * JOB_BYTES <= HEAD_BYTES_MAX);
    assert!(2 + FORWARDS_MAX * 12 <= HEAD_BYTES_MAX);
    assert!(32 + LU_BLOCKS_MAX <= HEAD_BYTES_MAX && 32 + LU_WIDTH_MAX * 4 <= HEAD_BYTES_MAX);
    assert!(LU_WIDTH_MAX * 8 <= CHUNK_BYTES_MAX);
    // A block has at most 1024 tiles along an edge, so one panel starts at most that many of both.
    assert!(MATRICES_MAX > 1024 + 1 && JOBS_MAX > 1024);
    assert!(DIALLED_HELLO_PATIENCE.as_secs() > AWAIT_MAX.as_secs() + WELCOME_DEADLINE.as_secs());
    assert!(AWAIT_MAX.as_secs() > AWAIT_DEADLINE.as_secs());
    assert!(HELLO_PATIENCE.as_secs() > AWAIT_DEADLINE.as_secs() + WELCOME_DEADLINE.as_secs());
    assert!(
        STRANGERS_PER_ADDRESS_MAX >= SESSIONS_MAX
            && STRANGERS_PER_ADDRESS_MAX < STRANGERS_MAX
            && STRANGER_HEAD_BYTES_MAX < HEAD_BYTES_MAX
    );
    assert!(LINK_WINDOW_BYTES >= 2 * CHUNK_BYTES_MAX);
    assert!(BYE_BYTES + THREADS_MAX * BYE_THREAD_BYTES <= HEAD_BYTES_MAX);
    assert!(LOG_BYTES + LOG_RECORDS_MAX * LOG_RECORD_BYTES <= HEAD_BYTES_MAX);
    assert!(LOG_WAITING_MAX >= LOG_RECORDS_MAX && LOG_RECORDS_MAX < 1 << 16);
    assert!(SILENCE_MAX.as_secs() >= 4 * PING_AFTER.as_secs());
    assert!(NEIGHBOUR_SILENCE_MAX.as_secs() >= SILENCE_MAX.as_secs() + 2 * NEIGHBOUR_BEAT.as_secs());
    assert!(NEIGHBOUR_SILENCE_MAX.as_secs() < STALL_MAX.as_secs());
    assert!(PRIMARY_SILENCE_MAX.as_secs() > SILENCE_MAX.as_secs() + PING_AFTER.as_secs());
};
