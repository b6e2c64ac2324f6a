/* The least cost of a frame of 64 KiB over MPI: a body alone, or a header of 80 bytes and the body, received after the header.
 *
 *   mpicc -O2 bench/mpi_two_messages.c -o /tmp/two && mpirun -n 2 /tmp/two
 *
 * Windows of 64, acknowledged, as `bramble bench link --function bandwidth`; one source and one sink. Three rounds in turns. */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { WINDOW = 64, AHEAD = 8, HEADER = 80, BODY = 65536, WINDOWS = 2000 };

static char source[BODY], sink[BODY], headers[AHEAD][8192];

static void send_window(int with_header) {
    MPI_Request requests[2 * WINDOW];
    int n = 0;
    for (int i = 0; i < WINDOW; i++) {
        if (with_header) MPI_Isend(source, HEADER, MPI_BYTE, 1, 1, MPI_COMM_WORLD, &requests[n++]);
        MPI_Issend(source, BODY, MPI_BYTE, 1, 2, MPI_COMM_WORLD, &requests[n++]);
    }
    MPI_Waitall(n, requests, MPI_STATUSES_IGNORE);
    MPI_Recv(NULL, 0, MPI_BYTE, 1, 3, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
}

static void expect(int i, MPI_Request *ahead) {
    MPI_Irecv(headers[i % AHEAD], sizeof headers[0], MPI_BYTE, 0, 1, MPI_COMM_WORLD, &ahead[i % AHEAD]);
}

static void receive_window(int with_header) {
    MPI_Request ahead[AHEAD];
    for (int i = 0; with_header && i < AHEAD; i++) expect(i, ahead);
    for (int i = 0; i < WINDOW; i++) {
        if (with_header) {
            MPI_Wait(&ahead[i % AHEAD], MPI_STATUS_IGNORE);
            if (i + AHEAD < WINDOW) expect(i + AHEAD, ahead);
        }
        MPI_Recv(sink, BODY, MPI_BYTE, 0, 2, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    }
    MPI_Send(NULL, 0, MPI_BYTE, 0, 3, MPI_COMM_WORLD);
}

int main(int argc, char **argv) {
    int rank;
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    memset(source, 1, sizeof source);
    for (int turn = 0; turn < 6; turn++) {
        int with_header = turn % 2;
        MPI_Barrier(MPI_COMM_WORLD);
        double began = MPI_Wtime();
        for (int i = 0; i < WINDOWS; i++) {
            if (rank == 0) send_window(with_header);
            else if (rank == 1) receive_window(with_header);
        }
        double each = (MPI_Wtime() - began) / WINDOWS / WINDOW;
        if (rank == 0) printf("%-15s %.2f us\n", with_header ? "header and body" : "body alone", each * 1e6);
    }
    MPI_Finalize();
}
