/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The yardstick for tools/compare_host.py: the benchmark's latency and bandwidth, by MPI.
 *
 *   mpiexec -n 2 mpi_pingpong latency SIZE ITERATIONS
 *     prints p50 of one way in microseconds
 *   mpiexec -n 2 mpi_pingpong bandwidth SIZE ITERATIONS WINDOW
 *     prints bytes a second / 1e9
 *
 * Buffers are private memory, one per message in flight. Each message is marked at both ends, and
 * the marks are checked on arrival, as in the benchmark of onehop.
 */
#include <mpi.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { kTag = 0, kAck = 1 };

struct row {
  size_t size;
  long iterations;
  long warmup;
  int window;
  int rank;
};

static void mark(uint8_t* at, size_t size, long iteration) {
  size_t bytes = size < sizeof(iteration) ? size : sizeof(iteration);
  memcpy(at, &iteration, bytes);
  memcpy(at + size - bytes, &iteration, bytes);
}

static void check(const uint8_t* at, size_t size, long iteration) {
  size_t bytes = size < sizeof(iteration) ? size : sizeof(iteration);
  if (memcmp(at, &iteration, bytes) == 0 && memcmp(at + size - bytes, &iteration, bytes) == 0)
    return;
  fprintf(stderr, "message %ld is wrong\n", iteration);
  MPI_Abort(MPI_COMM_WORLD, 1);
}

static int by_value(const void* left, const void* right) {
  double a = *(const double*)left;
  double b = *(const double*)right;
  return (a > b) - (a < b);
}

static void latency(const struct row* row, uint8_t* out, uint8_t* in) {
  double* samples = malloc((size_t)row->iterations * sizeof(double));
  int other = 1 - row->rank;
  int count = (int)row->size;
  for (long i = 0; i < row->warmup + row->iterations; ++i) {
    mark(out, row->size, i);
    double start = MPI_Wtime();
    if (row->rank == 0) {
      MPI_Send(out, count, MPI_BYTE, other, kTag, MPI_COMM_WORLD);
      MPI_Recv(in, count, MPI_BYTE, other, kTag, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    } else {
      MPI_Recv(in, count, MPI_BYTE, other, kTag, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
      MPI_Send(out, count, MPI_BYTE, other, kTag, MPI_COMM_WORLD);
    }
    double seconds = MPI_Wtime() - start;
    check(in, row->size, i);
    if (i >= row->warmup) samples[i - row->warmup] = seconds * 1e6 / 2;
  }
  qsort(samples, (size_t)row->iterations, sizeof(double), by_value);
  /* The smallest sample that half of them do not exceed. */
  if (row->rank == 0) printf("%.4f\n", samples[(row->iterations + 1) / 2 - 1]);
  free(samples);
}

/* `count` messages from rank 0 to rank 1; the seconds until rank 1 has confirmed them. */
static double flow(const struct row* row, uint8_t* slots, MPI_Request* requests, long count) {
  int size = (int)row->size;
  MPI_Barrier(MPI_COMM_WORLD);
  double start = MPI_Wtime();
  for (long i = 0; i < count + row->window; ++i) {
    MPI_Request* request = &requests[i % row->window];
    uint8_t* slot = slots + (size_t)(i % row->window) * row->size;
    if (i >= row->window && i - row->window < count) {
      MPI_Wait(request, MPI_STATUS_IGNORE);
      if (row->rank == 1) check(slot, row->size, i - row->window);
    }
    if (i >= count) continue;
    if (row->rank == 0) {
      mark(slot, row->size, i);
      MPI_Isend(slot, size, MPI_BYTE, 1, kTag, MPI_COMM_WORLD, request);
    } else {
      MPI_Irecv(slot, size, MPI_BYTE, 0, kTag, MPI_COMM_WORLD, request);
    }
  }
  if (row->rank == 0) {
    MPI_Recv(NULL, 0, MPI_BYTE, 1, kAck, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
  } else {
    MPI_Send(NULL, 0, MPI_BYTE, 0, kAck, MPI_COMM_WORLD);
  }
  return MPI_Wtime() - start;
}

static void bandwidth(const struct row* row, uint8_t* slots) {
  MPI_Request* requests = malloc((size_t)row->window * sizeof(MPI_Request));
  flow(row, slots, requests, row->warmup);
  double seconds = flow(row, slots, requests, row->iterations);
  if (row->rank == 0) {
    printf("%.4f\n", (double)row->size * (double)row->iterations / seconds / 1e9);
  }
  free(requests);
}

int main(int argc, char** argv) {
  struct row row = {0, 0, 0, 1, 0};
  MPI_Init(&argc, &argv);
  MPI_Comm_rank(MPI_COMM_WORLD, &row.rank);
  if (argc < 4 || (strcmp(argv[1], "bandwidth") == 0 && argc < 5)) {
    fprintf(stderr, "usage: mpi_pingpong latency|bandwidth SIZE ITERATIONS [WINDOW]\n");
    MPI_Abort(MPI_COMM_WORLD, 2);
  }
  row.size = strtoull(argv[2], NULL, 10);
  row.iterations = strtol(argv[3], NULL, 10);
  row.warmup = row.iterations / 10 + 2;
  if (argc > 4) row.window = (int)strtol(argv[4], NULL, 10);
  if (row.size == 0 || row.iterations < 1 || row.window < 1) {
    fprintf(stderr, "SIZE, ITERATIONS and WINDOW are 1 or more\n");
    MPI_Abort(MPI_COMM_WORLD, 2);
  }
  size_t total = row.size * (size_t)row.window;
  uint8_t* out = malloc(total);
  uint8_t* in = malloc(total);
  memset(out, 1, total);
  memset(in, 2, total);
  if (strcmp(argv[1], "latency") == 0) {
    latency(&row, out, in);
  } else {
    bandwidth(&row, row.rank == 0 ? out : in);
  }
  free(out);
  free(in);
  MPI_Finalize();
  return 0;
}
