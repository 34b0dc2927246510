/* Threads that share a piece of work, which one caller at a time may have. */

#ifndef TRANSLUME_THREADS
#define TRANSLUME_THREADS

#include <stdint.h>

/* Return the number of threads that may share work, this one included. */
int64_t thread_count(void);

/* Call work(task, part) once for every part below `parts`, in any order and on several threads; return when all are
   done. While another caller's work is shared, this thread does its own alone. */
void share_work(void (*work)(void *task, int64_t part), void *task, int64_t parts);

#endif
