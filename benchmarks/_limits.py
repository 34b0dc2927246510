"""What one core of this machine could do at best, bytes and int8 products a second, and what a search needs of them.

A step reads the weights of the decoder and the head once, and keys and values of each row; its multiply-adds are those
of the weights for every row. The least time of a step is the longer of the two times: with int8 weights no search can
be faster than the sum over its steps and its encoder.
"""

import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

PROGRAM = r"""
#include <immintrin.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>
#include <sys/mman.h>
#include <sys/syscall.h>
static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return t.tv_sec + 1e-9 * t.tv_nsec;
}
static double bandwidth(size_t size) {  /* bytes a second, the best of seven reads of the whole block */
    size_t page = 2 << 20;  /* huge pages, as the kernels' weights have */
    char *from = aligned_alloc(page, (size + page - 1) / page * page);
    double best = 1e9;
    madvise(from, size, MADV_HUGEPAGE);
    memset(from, 1, size);
    for (int turn = 0; turn < 7; turn++) {
        __m256i sum = _mm256_setzero_si256();
        int passes = size < (8 << 20) ? 8 : 1;
        double begin = now();
        for (int pass = 0; pass < passes; pass++)
            for (size_t k = 0; k < size; k += 128) {
                _mm_prefetch(from + k + 4096, _MM_HINT_T1);
                _mm_prefetch(from + k + 4160, _MM_HINT_T1);
                for (int part = 0; part < 4; part++)
                    sum = _mm256_xor_si256(sum, _mm256_load_si256((__m256i *)(from + k + 32 * part)));
            }
        double taken = (now() - begin) / passes;
        volatile long long kept = _mm256_extract_epi64(sum, 0);
        (void)kept;
        if (taken < best) best = taken;
    }
    free(from);
    return size / best;
}
static double products(void) {  /* int8 multiply-adds a second, on registers */
    double best = 1e9, each;
    long rounds = 300000;
    for (int turn = 0; turn < 7; turn++) {
#if defined(USE_AMX)
        struct {
            unsigned char palette, start, rest[14];
            unsigned short bytes[16];
            unsigned char rows[16];
        } shape = {1};
        syscall(158, 0x1023, 18);
        for (int k = 0; k < 8; k++) shape.bytes[k] = 64, shape.rows[k] = 16;
        _tile_loadconfig(&shape);
        double begin = now();
        for (long k = 0; k < rounds; k++) {
            _tile_dpbsud(0, 4, 6); _tile_dpbsud(1, 4, 7); _tile_dpbsud(2, 5, 6); _tile_dpbsud(3, 5, 7);
        }
        double taken = now() - begin;
        _tile_release();
        each = 4 * 16384.0;
#elif defined(USE_VNNI)
        __m512i s[10], a = _mm512_set1_epi8(1);
        for (int k = 0; k < 10; k++) s[k] = _mm512_setzero_si512();
        double begin = now();
        for (long k = 0; k < rounds; k++)
            for (int n = 0; n < 10; n++) __asm__ volatile("vpdpbusd %1, %1, %0" : "+v"(s[n]) : "v"(a));
        double taken = now() - begin;
        each = 10 * 64.0;
#else
        __m256i s[10], a = _mm256_set1_epi16(1), t;
        for (int k = 0; k < 10; k++) s[k] = _mm256_setzero_si256();
        double begin = now();
        for (long k = 0; k < rounds; k++)
            for (int n = 0; n < 10; n++)
                __asm__ volatile("vpmaddwd %2, %2, %1; vpaddd %1, %0, %0" : "+x"(s[n]), "=&x"(t) : "x"(a));
        double taken = now() - begin;
        each = 10 * 16.0;
#endif
        if (taken / rounds < best) best = taken / rounds;
    }
    return each / best;
}
int main(int count, char **sizes) {
    printf("%.0f", products());
    for (int k = 1; k < count; k++) printf(" %.0f", bandwidth((size_t)atoll(sizes[k]) / 4096 * 4096 + 4096));
    puts("");
}
"""
FLAGS = {
    "amx": ("-mavx512f", "-mamx-tile", "-mamx-int8", "-DUSE_AMX"),
    "avx512-bf16": ("-mavx512f", "-mavx512vnni", "-DUSE_VNNI"),
    "avx512-vnni": ("-mavx512f", "-mavx512vnni", "-DUSE_VNNI"),
    "avx512": (),
    "avx2": (),
}


@dataclass(frozen=True, slots=True)
class Shape:
    """What a search reads: weights of encoder and decoder (with the head), numbers of keys and values a position."""

    encoder: int
    decoder: int
    position: int


@dataclass(frozen=True, slots=True)
class Machine:
    """Multiply-adds a second, and bytes a second from blocks as large as the model's int8 weights."""

    products: float
    bandwidth: float

    def seconds(self, shape: Shape, sources: Sequence[int], targets: Sequence[int], beam: int) -> float:
        """Return the least time for a batch of sentences with these numbers of tokens."""
        total = max(shape.encoder / self.bandwidth, shape.encoder * sum(sources) / self.products)
        for step in range(max(targets)):
            live = [source for source, target in zip(sources, targets, strict=True) if target > step]
            caches = 2 * sum(shape.position * (source + beam * (step + 1)) for source in live)  # 2 bytes each
            work = shape.decoder * beam * len(live) / self.products
            total += max((shape.decoder + caches) / self.bandwidth, work)
        return total


def measure(instructions: str, size: int) -> Machine | None:
    """Return what this machine does with blocks of `size` bytes; None where the program cannot run (not x86)."""
    flags = FLAGS.get(instructions)
    if flags is None:
        return None
    with tempfile.TemporaryDirectory() as folder:
        source, program = Path(folder) / "limits.c", Path(folder) / "limits"
        source.write_text(PROGRAM)
        command = ["cc", "-O3", "-funroll-loops", "-mavx2", *flags, "-o", str(program), str(source)]
        subprocess.run(command, check=True, stderr=sys.stderr)
        products, bandwidth = map(
            float, subprocess.run([program, str(size)], check=True, capture_output=True).stdout.split()
        )
    return Machine(products, bandwidth)
