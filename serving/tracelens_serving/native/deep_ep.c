/* Intranode expert-parallel dispatch between two ranks, as a host sees it.
 *
 * Two processes map the same pages. A dispatch publishes this rank's step and token count, then waits on the host until
 * the peer has published the same step, because the caller must know how many tokens it is about to get. How it waits
 * (spin or futex) and whether other Python threads may run meanwhile (release_gil) are arguments of the Buffer.
 * A combine publishes and returns: it never waits.
 *
 * This file moves no tokens and knows nothing of what is in the pages after the header.
 */
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <structmember.h>

#include <errno.h>
#include <limits.h>
#include <linux/futex.h>
#include <stdalign.h>
#include <stdatomic.h>
#include <stdint.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#define RANKS 2
#define NS_PER_S 1000000000LL
/* How long to wait before looking at signals, the abort word and the deadline again. */
#define SLICE_NS (100 * 1000000LL)

/* A cache line for each rank, so that one rank's polling does not slow the other's stores. Counters only grow, and the
 * ranks are never more than one step apart: two token counts, used in turn, are enough. */
typedef struct {
    alignas(64) _Atomic uint32_t dispatched;
    _Atomic uint32_t combined;
    _Atomic int32_t tokens[2];
} RankLine;

typedef struct {
    alignas(64) _Atomic uint32_t aborted; /* offset 0: whoever supervises the ranks sets it to end every wait */
    RankLine rank[RANKS];
} Header;

typedef struct {
    PyObject_HEAD
    Py_buffer mapping;
    Header *shared;
    int rank;
    int spin;
    int release_gil;
    int64_t timeout_ns;
    uint32_t step;
    unsigned long long dispatches;
    unsigned long long wait_ns;
} Buffer;

typedef enum { ARRIVED, NOT_YET, ABORTED } Outcome;

static int64_t now_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * NS_PER_S + now.tv_nsec;
}

/* True when the counter has reached the step; the difference survives a wrap of the counter. */
static int reached(uint32_t counter, uint32_t step)
{
    return (int32_t)(counter - step) >= 0;
}

static void publish_dispatch(Buffer *self, int32_t tokens)
{
    RankLine *mine = &self->shared->rank[self->rank];
    atomic_store_explicit(&mine->tokens[self->step % 2], tokens, memory_order_relaxed);
    atomic_store_explicit(&mine->dispatched, self->step, memory_order_release);
    syscall(SYS_futex, &mine->dispatched, FUTEX_WAKE, INT_MAX, NULL, NULL, 0);
}

/* Wait for the peer, for one slice at most. Touches no Python object: it may run without the GIL. */
static Py_NO_INLINE Outcome wait_for_peer(Buffer *self)
{
    _Atomic uint32_t *counter = &self->shared->rank[1 - self->rank].dispatched;
    int64_t end = now_ns() + SLICE_NS;
    for (;;) {
        uint32_t seen = atomic_load_explicit(counter, memory_order_acquire);
        if (reached(seen, self->step))
            return ARRIVED;
        if (atomic_load_explicit(&self->shared->aborted, memory_order_relaxed))
            return ABORTED;
        int64_t left = end - now_ns();
        if (left <= 0)
            return NOT_YET;
        if (self->spin)
            continue;
        struct timespec patience = {left / NS_PER_S, left % NS_PER_S};
        if (syscall(SYS_futex, counter, FUTEX_WAIT, seen, &patience, NULL, 0) == -1 && errno == EINTR)
            return NOT_YET;
    }
}

static int token_count(PyObject *number, int32_t *tokens)
{
    long value = PyLong_AsLong(number);
    if (value == -1 && PyErr_Occurred())
        return -1;
    if (value < 0 || value > INT32_MAX) {
        PyErr_SetString(PyExc_ValueError, "a token count must be between 0 and 2^31 - 1");
        return -1;
    }
    *tokens = (int32_t)value;
    return 0;
}

PyDoc_STRVAR(intranode_dispatch_doc,
             "intranode_dispatch(tokens) -> tokens of the peer\n\n"
             "Publish this rank's next step and wait until the peer has published the same one.\n"
             "RuntimeError after timeout_s, or when the supervisor aborted the group.");

static PyObject *intranode_dispatch(Buffer *self, PyObject *number)
{
    int32_t tokens;
    if (token_count(number, &tokens) < 0)
        return NULL;
    self->step++;
    publish_dispatch(self, tokens);

    int64_t start = now_ns();
    int64_t waited;
    Outcome outcome;
    do {
        if (self->release_gil) {
            Py_BEGIN_ALLOW_THREADS
            outcome = wait_for_peer(self);
            waited = now_ns() - start;
            Py_END_ALLOW_THREADS
        } else {
            outcome = wait_for_peer(self);
            waited = now_ns() - start;
        }
        if (outcome == NOT_YET && PyErr_CheckSignals() < 0)
            return NULL;
    } while (outcome == NOT_YET && waited < self->timeout_ns);

    self->dispatches++;
    self->wait_ns += (unsigned long long)waited;
    if (outcome != ARRIVED)
        return PyErr_Format(PyExc_RuntimeError,
                            outcome == ABORTED ? "DeepEP error: group aborted (rank %d, step %u)"
                                               : "DeepEP error: CPU recv timeout (rank %d, step %u)",
                            self->rank, (unsigned)self->step);
    RankLine *peer = &self->shared->rank[1 - self->rank];
    return PyLong_FromLong(atomic_load_explicit(&peer->tokens[self->step % 2], memory_order_relaxed));
}

PyDoc_STRVAR(intranode_combine_doc,
             "intranode_combine() -> None\n\n"
             "Publish that the results for the peer's tokens of this step are in their place; never waits.");

static PyObject *intranode_combine(Buffer *self, PyObject *Py_UNUSED(ignored))
{
    atomic_store_explicit(&self->shared->rank[self->rank].combined, self->step, memory_order_release);
    Py_RETURN_NONE;
}

PyDoc_STRVAR(has_combined_doc, "has_combined(step) -> whether the peer's results of that step are in their place.");

static PyObject *has_combined(Buffer *self, PyObject *number)
{
    unsigned long step = PyLong_AsUnsignedLongMask(number);
    if (PyErr_Occurred())
        return NULL;
    RankLine *peer = &self->shared->rank[1 - self->rank];
    return PyBool_FromLong(reached(atomic_load_explicit(&peer->combined, memory_order_acquire), (uint32_t)step));
}

static int buffer_init(Buffer *self, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"mapping", "rank", "wait", "release_gil", "timeout_s", NULL};
    const char *wait = "futex";
    double timeout_s = 100.0;
    if (self->shared) {
        PyErr_SetString(PyExc_RuntimeError, "a Buffer is initialised once");
        return -1;
    }
    self->release_gil = 1;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "w*i|$spd", names, &self->mapping, &self->rank, &wait,
                                     &self->release_gil, &timeout_s))
        return -1;
    self->spin = strcmp(wait, "spin") == 0;
    if (!(timeout_s > 0 && timeout_s < 1e9))
        PyErr_SetString(PyExc_ValueError, "timeout_s must be positive and below 1e9");
    else if (self->mapping.len < (Py_ssize_t)sizeof(Header) || (uintptr_t)self->mapping.buf % alignof(Header))
        PyErr_Format(PyExc_ValueError, "the mapping must be aligned and have at least %zu bytes", sizeof(Header));
    else if (self->rank < 0 || self->rank >= RANKS)
        PyErr_Format(PyExc_ValueError, "rank %d is not below %d", self->rank, RANKS);
    else if (!self->spin && strcmp(wait, "futex") != 0)
        PyErr_Format(PyExc_ValueError, "wait '%s' is neither 'futex' nor 'spin'", wait);
    else {
        self->timeout_ns = (int64_t)(timeout_s * (double)NS_PER_S);
        self->shared = self->mapping.buf;
        return 0;
    }
    PyBuffer_Release(&self->mapping);
    return -1;
}

static void buffer_dealloc(Buffer *self)
{
    PyTypeObject *type = Py_TYPE(self);
    if (self->shared)
        PyBuffer_Release(&self->mapping);
    type->tp_free((PyObject *)self);
    Py_DECREF(type);
}

static PyMethodDef buffer_methods[] = {
    {"intranode_dispatch", (PyCFunction)intranode_dispatch, METH_O, intranode_dispatch_doc},
    {"intranode_combine", (PyCFunction)intranode_combine, METH_NOARGS, intranode_combine_doc},
    {"has_combined", (PyCFunction)has_combined, METH_O, has_combined_doc},
    {NULL, NULL, 0, NULL},
};

static PyMemberDef buffer_members[] = {
    {"step", T_UINT, offsetof(Buffer, step), READONLY, "the step of the latest dispatch; the first is 1"},
    {"dispatches", T_ULONGLONG, offsetof(Buffer, dispatches), READONLY, "calls of intranode_dispatch"},
    {"wait_ns", T_ULONGLONG, offsetof(Buffer, wait_ns), READONLY, "time that they waited for the peer, without the GIL's"},
    {NULL, 0, 0, 0, NULL},
};

PyDoc_STRVAR(buffer_doc,
             "Buffer(mapping, rank, *, wait='futex', release_gil=True, timeout_s=100.0)\n\n"
             "One of two ranks on a shared, writable, zeroed mapping whose first HEADER_BYTES belong to this module.\n"
             "A Buffer is used by one thread.");

static PyType_Slot buffer_slots[] = {
    {Py_tp_doc, (void *)buffer_doc}, {Py_tp_new, PyType_GenericNew},    {Py_tp_init, buffer_init},
    {Py_tp_dealloc, buffer_dealloc}, {Py_tp_methods, buffer_methods}, {Py_tp_members, buffer_members},
    {0, NULL},
};

static PyType_Spec buffer_spec = {"deep_ep.Buffer", sizeof(Buffer), 0, Py_TPFLAGS_DEFAULT, buffer_slots};

static int module_exec(PyObject *module)
{
    PyObject *type = PyType_FromSpec(&buffer_spec);
    if (!type || PyModule_AddObject(module, "Buffer", type) < 0) {
        Py_XDECREF(type);
        return -1;
    }
    return PyModule_AddIntConstant(module, "HEADER_BYTES", sizeof(Header));
}

static PyModuleDef_Slot module_slots[] = {{Py_mod_exec, module_exec}, {0, NULL}};

static struct PyModuleDef module = {
    PyModuleDef_HEAD_INIT, "deep_ep", "Intranode expert-parallel dispatch between two ranks.", 0,
    NULL, module_slots, NULL, NULL, NULL,
};

PyMODINIT_FUNC PyInit_deep_ep(void) { return PyModuleDef_Init(&module); }
