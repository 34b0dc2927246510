/* A pool of threads. They start at the first piece of work, spin for some microseconds after each one, since the next
   product of a step follows soon, and sleep then. A thread that the system does not run takes no part. */

#include "threads.h"

#if defined(_WIN32) || defined(__wasm__)

int64_t thread_count(void) { return 1; }
void translume_set_threads(int64_t count) { (void)count; }
void share_work(void (*work)(void *task, int64_t part), void *task, int64_t parts) {
    for (int64_t part = 0; part < parts; part++) work(task, part);
}

#else

#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>

#define SPINS 2000   /* rounds before a thread sleeps */
#define MAX_THREADS 256

static struct {
    pthread_mutex_t owner; /* held by the caller whose work is shared */
    pthread_mutex_t mutex; /* of `wake` */
    pthread_cond_t wake;
    atomic_llong turn;     /* counts openings and closings: odd while work is open */
    atomic_llong next;     /* the first part that nobody has taken */
    atomic_int inside;     /* threads that may be at work; the work is closed first, then these are waited for */
    atomic_int sleeping;
    void (*work)(void *task, int64_t part);
    void *task;
    int64_t parts, count, started;
} pool = {.owner = PTHREAD_MUTEX_INITIALIZER, .mutex = PTHREAD_MUTEX_INITIALIZER, .wake = PTHREAD_COND_INITIALIZER,
          .count = 1};

int64_t thread_count(void) { return pool.count; }

/* Set the number of threads that may share work. */
void translume_set_threads(int64_t count) {
    pthread_mutex_lock(&pool.owner);
    pool.count = count < 1 ? 1 : count > MAX_THREADS ? MAX_THREADS : count;
    pthread_mutex_unlock(&pool.owner);
}

static void rest(int64_t round) {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
    if (round % 1024 == 1023) sched_yield();
}

static void take_parts(void) {
    for (int64_t part; (part = atomic_fetch_add(&pool.next, 1)) < pool.parts;) pool.work(pool.task, part);
}

/* Return whether work is open that is not that of turn `seen`. */
static int is_open(int64_t seen) {
    int64_t turn = atomic_load(&pool.turn);
    return turn % 2 && turn != seen;
}

static void *serve(void *unused) {
    int64_t seen = 0;
    for (;;) {
        for (int64_t round = 0; round < SPINS && !is_open(seen); round++) rest(round);
        if (!is_open(seen)) {
            pthread_mutex_lock(&pool.mutex);
            atomic_fetch_add(&pool.sleeping, 1);
            while (!is_open(seen)) pthread_cond_wait(&pool.wake, &pool.mutex);
            atomic_fetch_sub(&pool.sleeping, 1);
            pthread_mutex_unlock(&pool.mutex);
        }
        atomic_fetch_add(&pool.inside, 1);
        if (is_open(seen)) { /* still: it cannot be replaced before this thread leaves */
            seen = atomic_load(&pool.turn);
            take_parts();
        }
        atomic_fetch_sub(&pool.inside, 1);
    }
    return unused;
}

/* A child of fork has none of the threads. */
static void forget_threads(void) {
    pthread_mutex_init(&pool.owner, NULL);
    pthread_mutex_init(&pool.mutex, NULL);
    pthread_cond_init(&pool.wake, NULL);
    pool.started = 0, pool.inside = 0, pool.sleeping = 0;
    if (pool.turn % 2) pool.turn++;
}

/* Start the threads that are missing; signals stay with the threads of the program. */
static void start_threads(void) {
    sigset_t all, before;
    pthread_t thread;
    if (pool.started >= pool.count - 1) return;
    if (!pool.turn) pthread_atfork(NULL, NULL, forget_threads);
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    for (; pool.started < pool.count - 1 && !pthread_create(&thread, NULL, serve, NULL); pool.started++)
        pthread_detach(thread);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
}

void share_work(void (*work)(void *task, int64_t part), void *task, int64_t parts) {
    if (parts < 2 || pool.count < 2 || pthread_mutex_trylock(&pool.owner)) {
        for (int64_t part = 0; part < parts; part++) work(task, part);
        return;
    }
    start_threads();
    pool.work = work, pool.task = task, pool.parts = parts;
    atomic_store(&pool.next, 0);
    atomic_fetch_add(&pool.turn, 1);
    if (atomic_load(&pool.sleeping)) {
        pthread_mutex_lock(&pool.mutex);
        pthread_cond_broadcast(&pool.wake);
        pthread_mutex_unlock(&pool.mutex);
    }
    take_parts();
    atomic_fetch_add(&pool.turn, 1);
    for (int64_t round = 0; atomic_load(&pool.inside); round++) rest(round);
    pthread_mutex_unlock(&pool.owner);
}

#endif
