/* A BLAS library that multiplies correctly, and then spoils some elements of one product.
 *
 * Bramble opens it in place of OpenBLAS (BRAMBLE_OPENBLAS=this file, --kernel openblas). Without FAULTY_CLASS it
 * never spoils anything. Operands in maps of the files of A and B belong to the program's product, and
 * their addresses give their rows, terms and columns. All other products, such as measurements of
 * the kernel's speed and the trial after loading, stay correct unless FAULTY_DEPTH names their depth.
 *
 * FAULTY_CLASS   zero, scale, stale, twice, short, swap, flip, sign, add, nan, inf: the fault of an element
 * FAULTY_SHAPE   element, row, column, alternate, part, tile: which elements of the tile
 * FAULTY_A, FAULTY_B  the files of the operands, whose elements are their last bytes, row by row
 * FAULTY_SIDES   "m k n"
 * FAULTY_AT      "row col": an element of C; the tile that has it is spoiled there
 * FAULTY_TERM    which product of that tile: the one whose sums have this term, counted from 0
 * FAULTY_VALUE   scale: the factor; add: the addend (any number that strtod reads)
 * FAULTY_BIT     flip: which bit, 0 is the lowest
 * FAULTY_OTHER   "row col" of the tile: what `swap` exchanges with, modulo the tile's sides; the corner of `part`
 * FAULTY_DEPTH   instead of FAULTY_TERM, where operands come over a network: every product of that depth is spoiled,
 *                its tile at FAULTY_AT modulo the tile's sides
 * FAULTY_OWNER   a file that the first process to spoil an element creates: other processes stay correct
 * FAULTY_LOG     a file that gets, for each spoiled product, a line "element_bytes row col rows cols depth pid" and
 *                the correct and the spoiled tile, row by row
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <math.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { ROW_MAJOR = 101, TRANS = 112 };

/* A tile of C: its first element's place (or -1, -1), its sides, and the product's first term (or -1) and depth. */
struct tile {
    long row, col, rows, cols, term, depth;
};

/* Rows and columns from..to of a tile, every `step`th column. */
struct region {
    long row_from, row_to, col_from, col_to, col_step;
};

enum class { ZERO, SCALE, STALE, TWICE, SHORT, SWAP, FLIP, SIGN, ADD, MAKE_NAN, MAKE_INF, CLASSES };
enum shape { ELEMENT, ROW, COLUMN, ALTERNATE, PART, TILE, SHAPES };

static const char *const CLASS_NAMES[] = {"zero", "scale", "stale", "twice", "short", "swap",
                                          "flip", "sign",  "add",   "nan",   "inf"};
static const char *const SHAPE_NAMES[] = {"element", "row", "column", "alternate", "part", "tile"};

/* The settings from the environment. */
static struct {
    int is_wanted, class, shape, bit;
    long at[2], other[2], sides[3], term, depth;
    double value;
    char *a, *b;
    const char *owner, *log;
} wanted;

static void die(const char *why) {
    fprintf(stderr, "faulty_blas: %s\n", why);
    abort();
}

static int index_of(const char *name, const char *const *names, int count) {
    const char *value = getenv(name);
    for (int i = 0; value && i < count; i++)
        if (strcmp(value, names[i]) == 0) return i;
    die(name);
    return -1;
}

static void pair(const char *name, long out[2]) {
    const char *value = getenv(name);
    if (value && (sscanf(value, "%ld %ld", &out[0], &out[1]) != 2 || out[0] < 0 || out[1] < 0)) die(name);
}

static long number(const char *name, long otherwise) {
    const char *value = getenv(name);
    return value ? atol(value) : otherwise;
}

static void __attribute__((constructor)) read_environment(void) {
    if (!getenv("FAULTY_CLASS")) return;
    wanted.is_wanted = 1;
    wanted.class = index_of("FAULTY_CLASS", CLASS_NAMES, CLASSES);
    wanted.shape = index_of("FAULTY_SHAPE", SHAPE_NAMES, SHAPES);
    pair("FAULTY_AT", wanted.at);
    pair("FAULTY_OTHER", wanted.other);
    long *sides = wanted.sides;
    const char *given = getenv("FAULTY_SIDES");
    if (given && sscanf(given, "%ld %ld %ld", &sides[0], &sides[1], &sides[2]) != 3) die("FAULTY_SIDES");
    if (getenv("FAULTY_A")) wanted.a = realpath(getenv("FAULTY_A"), NULL);
    if (getenv("FAULTY_B")) wanted.b = realpath(getenv("FAULTY_B"), NULL);
    wanted.term = number("FAULTY_TERM", 0);
    wanted.depth = number("FAULTY_DEPTH", -1);
    wanted.bit = (int)number("FAULTY_BIT", 0);
    wanted.value = getenv("FAULTY_VALUE") ? strtod(getenv("FAULTY_VALUE"), NULL) : 0;
    wanted.owner = getenv("FAULTY_OWNER");
    wanted.log = getenv("FAULTY_LOG");
}

/* The number of the element at an address in a map of the file of a matrix of `elements` elements; -1 if it lies
 * elsewhere. */
static long element_at(const void *address, const char *file, long elements, long element_bytes) {
    if (!file) return -1;
    FILE *maps = fopen("/proc/self/maps", "r");
    if (!maps) die("/proc/self/maps");
    char line[8192];
    long found = -1;
    while (fgets(line, sizeof line, maps)) {
        unsigned long from, to, offset;
        int name = 0;
        struct stat is;
        if (sscanf(line, "%lx-%lx %*s %lx %*s %*s %n", &from, &to, &offset, &name) < 3) continue;
        if ((uintptr_t)address < from || (uintptr_t)address >= to) continue;
        line[strcspn(line, "\n")] = 0;
        if (strcmp(line + name, file) != 0 || stat(file, &is) != 0) break;
        long head = (long)is.st_size - elements * element_bytes;
        long bytes = (long)((uintptr_t)address - from + offset) - head;
        if (head < 0 || bytes < 0) die("FAULTY_SIDES does not fit the files");
        found = bytes / element_bytes;
        break;
    }
    fclose(maps);
    return found;
}

/* Sets the tile's place in C and its terms; false if the operands are not in the maps. */
static int locate(struct tile *tile, const void *a, const void *b, long element_bytes) {
    long m = wanted.sides[0], k = wanted.sides[1], n = wanted.sides[2];
    long left = element_at(a, wanted.a, m * k, element_bytes);
    long right = element_at(b, wanted.b, k * n, element_bytes);
    if (left < 0 || right < 0) return 0;
    tile->row = left / k;
    tile->col = right % n;
    tile->term = left % k;
    if (right / n != tile->term) die("A and B begin at different terms");
    return 1;
}

/* Whether this process is the one that may spoil. */
static int is_owner(void) {
    const char *path = wanted.owner;
    if (!path) return 1;
    char mine[32], theirs[32] = "";
    snprintf(mine, sizeof mine, "%ld", (long)getpid());
    int file = open(path, O_CREAT | O_EXCL | O_WRONLY, 0600);
    if (file >= 0) {
        int written = write(file, mine, strlen(mine)) > 0;
        close(file);
        return written;
    }
    file = open(path, O_RDONLY);
    if (file < 0 || read(file, theirs, sizeof theirs - 1) < 0) die("FAULTY_OWNER");
    close(file);
    return strcmp(mine, theirs) == 0;
}

/* Whether to spoil this product; `at` is then the fault's element of the tile. */
static int is_chosen(struct tile *tile, const void *a, const void *b, long element_bytes, long at[2]) {
    if (!wanted.is_wanted) return 0;
    at[0] = wanted.at[0], at[1] = wanted.at[1];
    if (wanted.depth >= 0) {
        at[0] %= tile->rows;
        at[1] %= tile->cols;
        return tile->depth == wanted.depth && is_owner();
    }
    if (!locate(tile, a, b, element_bytes)) return 0;
    at[0] -= tile->row;
    at[1] -= tile->col;
    long term = wanted.term - tile->term;
    return at[0] >= 0 && at[0] < tile->rows && at[1] >= 0 && at[1] < tile->cols && term >= 0 && term < tile->depth;
}

/* The elements that are spoiled. */
static struct region region_of(const struct tile *tile, const long at[2]) {
    struct region r = {0, tile->rows, 0, tile->cols, 1};
    int shape = wanted.shape;
    if (shape == ELEMENT || shape == ROW) r.row_from = at[0], r.row_to = at[0] + 1;
    if (shape == ELEMENT || shape == COLUMN) r.col_from = at[1], r.col_to = at[1] + 1;
    if (shape == ALTERNATE) r.col_from = at[1] % 2, r.col_step = 2;
    if (shape == PART) {
        long row = wanted.other[0] % tile->rows, col = wanted.other[1] % tile->cols;
        r.row_from = row < at[0] ? row : at[0], r.row_to = (row < at[0] ? at[0] : row) + 1;
        r.col_from = col < at[1] ? col : at[1], r.col_to = (col < at[1] ? at[1] : col) + 1;
    }
    return r;
}

/* Whose value an element gets from `swap`: single elements, rows and columns change places with another of the tile,
 * neighbouring columns with each other, and the rows of larger regions move up by one. */
static void partner_of(const struct tile *tile, const struct region *r, long *row, long *col) {
    int shape = wanted.shape;
    if (shape == ELEMENT || shape == ROW) *row = wanted.other[0] % tile->rows;
    if (shape == ELEMENT || shape == COLUMN) *col = wanted.other[1] % tile->cols;
    if (shape == ALTERNATE && *col + 1 < tile->cols) *col += 1;
    if (shape == PART || shape == TILE) *row = r->row_from + (*row - r->row_from + 1) % (r->row_to - r->row_from);
}

static void note(const struct tile *tile, long element_bytes, const void *right, const void *spoiled) {
    if (!wanted.log) return;
    static pthread_mutex_t one_at_a_time = PTHREAD_MUTEX_INITIALIZER;
    size_t bytes = (size_t)(tile->rows * tile->cols * element_bytes);
    pthread_mutex_lock(&one_at_a_time);
    FILE *log = fopen(wanted.log, "a");
    if (!log) die("FAULTY_LOG");
    fprintf(log, "%ld %ld %ld %ld %ld %ld %ld\n", element_bytes, tile->row, tile->col, tile->rows, tile->cols,
            tile->depth, (long)getpid());
    if (fwrite(right, 1, bytes, log) != bytes || fwrite(spoiled, 1, bytes, log) != bytes) die("FAULTY_LOG");
    fclose(log);
    pthread_mutex_unlock(&one_at_a_time);
}

static void *take(size_t count, size_t size) {
    void *memory = calloc(count ? count : 1, size);
    if (!memory) die("no memory");
    return memory;
}

#define REAL float
#define BITS uint32_t
#define NAME(name) name##_f32
#define GEMM cblas_sgemm
#include "gemm.inc"
#undef REAL
#undef BITS
#undef NAME
#undef GEMM

#define REAL double
#define BITS uint64_t
#define NAME(name) name##_f64
#define GEMM cblas_dgemm
#include "gemm.inc"

void openblas_set_num_threads(int threads) { (void)threads; }
int openblas_get_parallel(void) { return 1; }
char *openblas_get_config(void) { return (char *)"multiplies right, then spoils what it was asked to"; }
