/*
 * One thread that writes files while others compute, or none, and then whoever calls does. Jobs run
 * in the order in which they came; the queue is a ring guarded by one mutex. The first failure is
 * kept: later jobs are dropped, because what follows a file that could not be written is not worth
 * writing.
 */
#include "data/data.h"

#include <pthread.h>
#include <signal.h>
#include <string.h>

struct rv_writer {
    rv_writer_job *jobs; /* ring of `room` */
    int room;
    pthread_t thread;
    pthread_mutex_t mutex;
    pthread_cond_t work, space; /* for the thread; for those who wait for it */
    bool made_mutex, made_work, made_space, made_thread;
    /* guarded by the mutex */
    int first, count; /* a job leaves the ring when it has ended */
    bool quit;
    rv_status status;
    rv_error error; /* when status is not RV_OK */
};

/* Under the mutex, which is released while the job runs. */
static void first_run(rv_writer *writer) {
    rv_writer_job job = writer->jobs[writer->first];
    bool dropped = writer->status != RV_OK;
    pthread_mutex_unlock(&writer->mutex);
    rv_status status = dropped ? RV_OK : job.run(job.self);
    if (job.done) job.done(job.self);
    pthread_mutex_lock(&writer->mutex);
    if (status != RV_OK) {
        writer->status = status;
        writer->error = *rv_error_get();
    }
    writer->first = (writer->first + 1) % writer->room;
    writer->count--;
    pthread_cond_broadcast(&writer->space);
}

static void *writer_run(void *argument) {
    rv_writer *writer = argument;
    pthread_mutex_lock(&writer->mutex);
    for (;;) {
        while (!writer->quit && writer->count == 0)
            pthread_cond_wait(&writer->work, &writer->mutex);
        if (writer->count == 0) break; /* quit comes after the last job */
        first_run(writer);
    }
    pthread_mutex_unlock(&writer->mutex);
    return NULL;
}

/* Until a job has left; under the mutex. Without a thread nobody else would run one. */
static void job_wait(rv_writer *writer) {
    if (writer->made_thread)
        pthread_cond_wait(&writer->space, &writer->mutex);
    else
        first_run(writer);
}

/* The thread takes no signals: they belong to the threads that compute, and would only interrupt
 * its writes. */
static rv_status thread_start(rv_writer *writer) {
    rv_status status = RV_OK;
    sigset_t all, old;
    sigfillset(&all);
    if (pthread_sigmask(SIG_SETMASK, &all, &old) != 0) FAIL(RV_INTERNAL, "cannot block signals");
    writer->made_thread = pthread_create(&writer->thread, NULL, writer_run, writer) == 0;
    if (pthread_sigmask(SIG_SETMASK, &old, NULL) != 0) FAIL(RV_INTERNAL, "cannot unblock signals");
    if (!writer->made_thread) FAIL(RV_RESOURCE, "cannot start the thread that writes files");
out:
    return status;
}

static rv_status create(int room, bool thread, rv_writer **out) {
    rv_status status = RV_OK;
    rv_writer *writer = NULL;
    *out = NULL;
    TRY(rv_alloc(1, sizeof *writer, "a writer", &writer));
    writer->room = room;
    TRY(rv_alloc((size_t)room, sizeof *writer->jobs, "a queue of files", &writer->jobs));
    if (pthread_mutex_init(&writer->mutex, NULL) != 0) FAIL(RV_RESOURCE, "cannot make a mutex");
    writer->made_mutex = true;
    if (pthread_cond_init(&writer->work, NULL) != 0) FAIL(RV_RESOURCE, "cannot make a condition");
    writer->made_work = true;
    if (pthread_cond_init(&writer->space, NULL) != 0) FAIL(RV_RESOURCE, "cannot make a condition");
    writer->made_space = true;
    if (thread) TRY(thread_start(writer));
    *out = writer;
    writer = NULL;
out:
    rv_writer_destroy(writer);
    return status;
}

rv_status rv_writer_create(int room, rv_writer **out) {
    return create(room, true, out);
}

rv_status rv_writer_create_stepped(int room, rv_writer **out) {
    return create(room, false, out);
}

/* What waits is still written. */
void rv_writer_destroy(rv_writer *writer) {
    if (!writer) return;
    if (writer->made_thread) {
        pthread_mutex_lock(&writer->mutex);
        writer->quit = true;
        pthread_cond_signal(&writer->work);
        pthread_mutex_unlock(&writer->mutex);
        pthread_join(writer->thread, NULL);
    }
    while (writer->count > 0)
        (void)rv_writer_step(writer);
    if (writer->made_space) pthread_cond_destroy(&writer->space);
    if (writer->made_work) pthread_cond_destroy(&writer->work);
    if (writer->made_mutex) pthread_mutex_destroy(&writer->mutex);
    rv_free(writer->jobs);
    rv_free(writer);
}

/* The thread's error becomes the caller's, every time anew. */
static rv_status failure(const rv_writer *writer) {
    if (writer->status != RV_OK) rv_error_set(&writer->error);
    return writer->status;
}

rv_status rv_writer_submit(rv_writer *writer, const rv_writer_job *job) {
    pthread_mutex_lock(&writer->mutex);
    while (writer->count == writer->room && writer->status == RV_OK)
        job_wait(writer);
    rv_status status = failure(writer);
    if (status == RV_OK) {
        writer->jobs[(writer->first + writer->count++) % writer->room] = *job;
        pthread_cond_signal(&writer->work);
    }
    pthread_mutex_unlock(&writer->mutex);
    return status;
}

rv_status rv_writer_check(rv_writer *writer, bool *idle) {
    pthread_mutex_lock(&writer->mutex);
    rv_status status = failure(writer);
    if (idle) *idle = writer->count == 0;
    pthread_mutex_unlock(&writer->mutex);
    return status;
}

rv_status rv_writer_wait(rv_writer *writer) {
    pthread_mutex_lock(&writer->mutex);
    while (writer->count > 0)
        job_wait(writer);
    rv_status status = failure(writer);
    pthread_mutex_unlock(&writer->mutex);
    return status;
}

bool rv_writer_step(rv_writer *writer) {
    pthread_mutex_lock(&writer->mutex);
    bool any = writer->count > 0;
    if (any) first_run(writer);
    pthread_mutex_unlock(&writer->mutex);
    return any;
}
