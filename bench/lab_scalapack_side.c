/* ScaLAPACK as a rival in the lab. Rank 0 is the primary: it has A and B, wants C, and computes nothing. The remaining ranks are a
 * P x Q grid. pdgemr2d carries the matrices from rank 0 onto the grid and C back; p[sd]gemm multiplies.
 *
 *     mpirun … lab_scalapack A.npy B.npy C.npy N f32|f64 BLOCK P Q
 *
 * Rank 0 prints the seconds of the product, distribution and collection included. A small product before it opens all
 * connections; buffers are touched before. The files hold square matrices row by row, and ScaLAPACK reads their rows
 * as columns: so it computes the transpose of C as (transpose of B) (transpose of A).
 * Build: mpicc -O2 lab_scalapack_side.c -o lab_scalapack -lscalapack-openmpi
 */
#include <mpi.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

extern void Cblacs_pinfo(int *rank, int *ranks);
extern void Cblacs_get(int context, int what, int *value);
extern void Cblacs_gridmap(int *context, int *ranks, int leading, int rows, int cols);
extern void Cblacs_gridinfo(int context, int *rows, int *cols, int *row, int *col);
extern int numroc_(const int *n, const int *block, const int *at, const int *first, const int *places);
extern void descinit_(int *desc, const int *m, const int *n, const int *mb, const int *nb, const int *row, const int *col,
                      const int *context, const int *leading, int *info);
extern void Cpdgemr2d(int m, int n, double *a, int ia, int ja, int *desca, double *b, int ib, int jb, int *descb, int all);
extern void Cpsgemr2d(int m, int n, float *a, int ia, int ja, int *desca, float *b, int ib, int jb, int *descb, int all);
extern void pdgemm_(const char *, const char *, const int *, const int *, const int *, const double *, const double *,
                    const int *, const int *, const int *, const double *, const int *, const int *, const int *,
                    const double *, double *, const int *, const int *, const int *);
extern void psgemm_(const char *, const char *, const int *, const int *, const int *, const float *, const float *,
                    const int *, const int *, const int *, const float *, const int *, const int *, const int *,
                    const float *, float *, const int *, const int *, const int *);

enum { DESC = 9, WARM_UP = 256 };
static int rank, ranks, doubles, home, grid, all;

static void fail(const char *what) {
    fprintf(stderr, "rank %d: %s\n", rank, what);
    MPI_Abort(MPI_COMM_WORLD, 1);
}

static void *memory(size_t elements) {
    size_t bytes = elements * (doubles ? 8 : 4);
    void *at = malloc(bytes ? bytes : 1);
    if (!at) fail("no memory");
    memset(at, 0, bytes);
    return at;
}

/* The description of an n x n matrix, and how many elements of it are here. */
static size_t describe(int *desc, int n, int block, int context) {
    int rows, cols, row = -1, col = -1, zero = 0, info;
    memset(desc, 0, DESC * sizeof *desc);
    desc[1] = -1; /* Not in this context. */
    if (context < 0) return 0;
    Cblacs_gridinfo(context, &rows, &cols, &row, &col);
    if (row < 0) return 0;
    int high = numroc_(&n, &block, &row, &zero, &rows), wide = numroc_(&n, &block, &col, &zero, &cols);
    int leading = high > 0 ? high : 1;
    descinit_(desc, &n, &n, &block, &block, &zero, &zero, &context, &leading, &info);
    if (info) fail("descinit");
    return (size_t)leading * (size_t)wide;
}

static void carry(int n, void *from, int *from_desc, void *to, int *to_desc) {
    if (doubles) Cpdgemr2d(n, n, from, 1, 1, from_desc, to, 1, 1, to_desc, all);
    else Cpsgemr2d(n, n, from, 1, 1, from_desc, to, 1, 1, to_desc, all);
}

static void multiply(int n, void *left, void *right, void *out, int *desc) {
    const int one = 1;
    const double d1 = 1, d0 = 0;
    const float f1 = 1, f0 = 0;
    if (desc[1] < 0) return;
    if (doubles) pdgemm_("N", "N", &n, &n, &n, &d1, left, &one, &one, desc, right, &one, &one, desc, &d0, out, &one, &one, desc);
    else psgemm_("N", "N", &n, &n, &n, &f1, left, &one, &one, desc, right, &one, &one, desc, &f0, out, &one, &one, desc);
}

/* Seconds of C = AB from rank 0 to rank 0. */
static double product(int n, int block, void *a, void *b, void *c) {
    int at_home[DESC], spread[DESC];
    describe(at_home, n, n, home);
    size_t mine = describe(spread, n, block, grid);
    void *parts[3];
    for (int i = 0; i < 3; i++) parts[i] = memory(mine);
    MPI_Barrier(MPI_COMM_WORLD);
    double begun = MPI_Wtime();
    carry(n, b, at_home, parts[0], spread);
    carry(n, a, at_home, parts[1], spread);
    multiply(n, parts[0], parts[1], parts[2], spread);
    carry(n, parts[2], spread, c, at_home);
    double seconds = MPI_Wtime() - begun;
    for (int i = 0; i < 3; i++) free(parts[i]);
    return seconds;
}

/* Reads the elements of an .npy file; `head` gets what stands before them. */
static void read_npy(const char *path, void *into, size_t bytes, unsigned char *head, size_t *head_bytes) {
    FILE *file = fopen(path, "rb");
    unsigned char start[10];
    if (!file || fread(start, 1, 10, file) != 10) fail(path);
    *head_bytes = 10 + (size_t)start[8] + 256 * (size_t)start[9];
    rewind(file);
    if (*head_bytes > 4096 || fread(head, 1, *head_bytes, file) != *head_bytes) fail(path);
    if (fread(into, 1, bytes, file) != bytes) fail(path);
    fclose(file);
}

static void write_npy(const char *path, const void *from, size_t bytes, const unsigned char *head, size_t head_bytes) {
    FILE *file = fopen(path, "wb");
    if (!file || fwrite(head, 1, head_bytes, file) != head_bytes) fail(path);
    if (fwrite(from, 1, bytes, file) != bytes || fclose(file)) fail(path);
}

static void grids(int p, int q) {
    int *map = malloc((size_t)ranks * sizeof *map), first = 0;
    if (!map) fail("no memory");
    for (int i = 0; i < ranks; i++) map[i] = i;
    Cblacs_get(-1, 0, &all);
    Cblacs_gridmap(&all, map, 1, 1, ranks);
    Cblacs_get(-1, 0, &home);
    Cblacs_gridmap(&home, &first, 1, 1, 1);
    for (int i = 0; i < p * q; i++) map[i] = i + 1;
    Cblacs_get(-1, 0, &grid);
    Cblacs_gridmap(&grid, map, p, p, q);
    free(map);
}

int main(int count, char **words) {
    MPI_Init(&count, &words);
    Cblacs_pinfo(&rank, &ranks);
    if (count != 9) fail("A.npy B.npy C.npy N f32|f64 BLOCK P Q");
    int n = atoi(words[4]), block = atoi(words[6]), p = atoi(words[7]), q = atoi(words[8]);
    doubles = !strcmp(words[5], "f64");
    if (n < 1 || block < 1 || p < 1 || q < 1 || p * q != ranks - 1) fail("the grid is not the ranks but the first");
    grids(p, q);
    size_t elements = rank == 0 ? (size_t)n * (size_t)n : 0, bytes = elements * (doubles ? 8 : 4), head_bytes = 0;
    unsigned char head[4096];
    void *a = memory(elements), *b = memory(elements), *c = memory(elements);
    if (rank == 0) {
        read_npy(words[1], a, bytes, head, &head_bytes);
        read_npy(words[2], b, bytes, head, &head_bytes);
    }
    product(n < WARM_UP ? n : WARM_UP, block, a, b, c);
    double seconds = product(n, block, a, b, c);
    if (rank == 0) {
        write_npy(words[3], c, bytes, head, head_bytes);
        printf("%.6f\n", seconds);
    }
    MPI_Finalize();
    return 0;
}
