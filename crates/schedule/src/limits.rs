//! Every limit of the protocol, with the relations between them.

use std::time::Duration;

/// Version of the protocol. Both ends must have the same.
pub const PROTOCOL: u16 = 5;
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
/// Most matrices in one message, and most jobs.
pub const MATRICES_MAX: usize = 1280;
/// See `MATRICES_MAX`.
pub const JOBS_MAX: usize = 1280;
/// Most orders to relay in one message.
pub const FORWARDS_MAX: usize = 4096;
/// Most other workers that one is introduced to in a session.
pub const NEIGHBOURS_MAX: usize = 64;
/// A worker that has no room and has given none back for that long is relieved of what it keeps for others, if that is half
/// of what it has.
pub const HELD_UP_AFTER: Duration = Duration::from_millis(200);
/// Two workers must have found each other by then; whoever has not is served by the primary.
pub const NEIGHBOURS_DEADLINE: Duration = Duration::from_secs(3);
/// Rows or columns of a stored matrix. A line has to fit a frame besides: at most `CHUNK_BYTES_MAX` bytes.
pub const SIDE_MAX: u32 = 1 << 20;
/// Sessions that a worker has at once.
pub const SESSIONS_MAX: usize = 16;
/// Least memory that is worth a session, where more was wanted.
pub const GRANT_BYTES_MIN: u64 = 1 << 20;
/// Threads in a goodbye.
pub const THREADS_MAX: usize = 2000;
/// Bytes of a goodbye beside its threads, and of each of them.
pub const BYE_BYTES: usize = 66;
/// See `BYE_BYTES`.
pub const BYE_THREAD_BYTES: usize = 32;
/// Records of what threads did, in one message.
pub const LOG_RECORDS_MAX: usize = 1024;
/// Bytes of such a message before its records, and of each of them.
pub const LOG_BYTES: usize = 10;
/// See `LOG_BYTES`.
pub const LOG_RECORD_BYTES: usize = 28;
/// Records that a worker keeps until they can leave; what comes on top is lost, and counted.
pub const LOG_WAITING_MAX: usize = 16 << 10;
/// How often a worker sends what it has.
pub const LOG_EVERY: Duration = Duration::from_millis(100);
/// No clock has run for longer, in nanoseconds: more than a century, and sums of two fit 63 bits.
pub const CLOCK_NS_MAX: u64 = 1 << 62;
/// What matrices and jobs count for at least: that bounds how many a worker has to remember.
pub use bramble_plan::{MATRIX_BYTES_MIN, USE_BYTES};

/// Longest head of a frame before the other end has said hello or welcome: with its header, 1 KiB.
pub const STRANGER_HEAD_BYTES_MAX: usize = 1008;
/// Connections at a time that have not made themselves known; the oldest goes when one more comes.
pub const STRANGERS_MAX: usize = 64;
/// The same from one address, or one /64 of IPv6.
pub const STRANGERS_PER_ADDRESS_MAX: usize = 16;
/// Connections that are taken in a second, be it only to be closed: about 10 microseconds each.
pub const ACCEPTS_PER_S_MAX: u32 = 4000;
/// Connections of one address in a second, in the long run, that get further: TLS costs half a millisecond.
pub const ACCEPTS_PER_ADDRESS_PER_S_MAX: u32 = 200;
/// A frame that has begun may stand still for that long.
pub const STALL_MAX: Duration = Duration::from_secs(20);
/// A frame may not be slower than this for `RATE_WINDOW`.
pub const BYTES_PER_S_MIN: u64 = 4 << 10;
/// See `BYTES_PER_S_MIN`.
pub const RATE_WINDOW: Duration = Duration::from_secs(30);
/// A primary that waits for workers to dial in has them all by then, unless its user says otherwise.
pub const AWAIT_DEADLINE: Duration = Duration::from_secs(120);
/// The longest time that a user may have it wait.
pub const AWAIT_MAX: Duration = Duration::from_secs(24 * 3600);
/// A worker that has dialled a primary, which then has proven its key, waits this long for the hello: the primary waits for its
/// other workers. A connection whose other end is gone ends sooner (`tune` in `link/src/tcp/mod.rs`).
pub const DIALLED_HELLO_PATIENCE: Duration = Duration::from_secs(24 * 3600 + 60);
/// A primary that has dialled, and has proven its key, may take this long for its hello: it waits for its other workers,
/// and measures itself.
pub const HELLO_PATIENCE: Duration = Duration::from_secs(150);
/// A connection must be encrypted and its key proven by then, all in all; where no key is asked for, its hello said.
pub const HANDSHAKE_DEADLINE: Duration = Duration::from_secs(5);
/// A worker must have said welcome by then: it opens and measures its kernels first, which takes a loaded
/// small board a few seconds.
pub const WELCOME_DEADLINE: Duration = Duration::from_secs(10);
/// Silence, of either end, after which the primary asks whether a worker is still there.
pub const PING_AFTER: Duration = Duration::from_secs(2);
/// Silence after which the primary gives a worker up: it was asked four times, and others wait for what it has.
pub const SILENCE_MAX: Duration = Duration::from_secs(8);
/// A worker that has nothing for another one says that often that it is there.
pub const NEIGHBOUR_BEAT: Duration = Duration::from_secs(1);
/// Silence after which a worker gives its link with another one up: the primary sends what would have come. A machine that is
/// gone the primary has found before, so that it is named as lost, and not the links with it.
pub const NEIGHBOUR_SILENCE_MAX: Duration = Duration::from_secs(10);
/// Silence after which a worker gives its primary up, and another worker whose announced panel does not come. Nothing is
/// gained by doing so soon: the primary may wait for its disk.
pub const PRIMARY_SILENCE_MAX: Duration = Duration::from_secs(22);

/// Lines of `line_bytes` that one frame carries.
pub fn lines_per_frame(line_bytes: usize) -> u32 {
    u32::try_from((CHUNK_BYTES_MAX / line_bytes.max(1)).max(1)).unwrap_or(u32::MAX)
}

const _: () = {
    assert!(4 + MATRICES_MAX * MATRIX_HEADER_BYTES + JOBS_MAX * JOB_BYTES <= HEAD_BYTES_MAX);
    assert!(2 + FORWARDS_MAX * 12 <= HEAD_BYTES_MAX);
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
