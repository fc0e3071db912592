/*
 * The first steps of a restored program, and what they find.
 *
 * A restored program is, to the interpreter, the child of a fork: another process with the same memory, in which no
 * other thread lives. So CPython itself renews most of what it had from the C library, in PyOS_AfterFork_Child. Beyond
 * that it knows the thread by its identifier and by a key of thread-specific storage, and the dispositions of signals.
 */
#include "dump.h"
#include <internal/pycore_interp.h>
#if PY_VERSION_HEX >= 0x030d0000
#include <internal/pycore_obmalloc.h>
#endif
#include <internal/pycore_pymem.h>
#include <internal/pycore_runtime.h>
#include <signal.h>
#include <string.h>

#if PY_VERSION_HEX >= 0x030c0000
#define THREAD_STATE_KEY (&_PyRuntime.autoTSSkey)
#else
#define THREAD_STATE_KEY (&_PyRuntime.gilstate.autoTSSkey)
#endif

static SAVED PyThreadState *thread;
static SAVED PyObject *start;

/* Leaves the interpreter as the next program finds it; after this no object may be touched. */
void prepare_restore(PyObject *function)
{
    PyObject *collector = PyImport_ImportModule("gc"), *globals = PyModule_GetDict(PyImport_AddModule("__main__"));

    start = function;
    PyDict_Clear(globals);
    PyDict_SetItemString(globals, "__name__", PyUnicode_InternFromString("__main__"));
    if (!collector || !PyObject_CallMethod(collector, "collect", NULL))
        fail("cannot collect garbage");
    make_immortal();
    /* What has been dumped is looked at by no collection: it would touch every page. */
    if (!PyObject_CallMethod(collector, "freeze", NULL))
        fail("cannot freeze what the collector knows");
    thread = PyThreadState_Get();
    /* What it would replace is counted, wherever that lies. */
    PyType_ClearCache();
    /* Of frames that have ended. */
    memset(thread->datastack_top, 0, (char *)thread->datastack_limit - (char *)thread->datastack_top);
    /* What is allocated from now on lies together, away from what was dumped. */
    if (_PyMem_SetupAllocators(PYMEM_ALLOCATOR_PYMALLOC) < 0)
        fail("this interpreter has no allocator of its own (pymalloc)");
    /* Hooks of modules at forks look after other threads, of which the programs here have none. */
    Py_CLEAR(thread->interp->before_forkers);
    Py_CLEAR(thread->interp->after_forkers_parent);
    Py_CLEAR(thread->interp->after_forkers_child);
    PyEval_SaveThread();
    thread->thread_id = 0;
    thread->native_thread_id = 0;
    _PyRuntime.main_thread = 0;
    arena_seal();
    is_restored = 1;
}

static void fail_with_traceback(const char *what)
{
    if (PyErr_Occurred())
        PyErr_Print();
    fail("%s", what);
}

static PyObject *strings(char **texts, PyObject *(*convert)(const char *))
{
    PyObject *list = PyList_New(0);

    for (; list && *texts; texts++) {
        PyObject *text = convert(*texts);
        if (!text || PyList_Append(list, text) < 0)
            return NULL;
        Py_DECREF(text);
    }
    return list;
}

/* The signals that whoever started this program ignores. What Python itself ignores is no news. */
static PyObject *ignored_signals(void)
{
    PyObject *numbers = PyList_New(0);

    for (int number = 1; numbers && number < NSIG; number++) {
        struct sigaction action;
        if (number == SIGPIPE || number == SIGXFSZ || sigaction(number, NULL, &action) < 0)
            continue;
        if (action.sa_handler == SIG_IGN) {
            PyObject *ignored = PyLong_FromLong(number);
            if (!ignored || PyList_Append(numbers, ignored) < 0)
                return NULL;
            Py_DECREF(ignored);
        }
    }
    PyOS_setsig(SIGPIPE, SIG_IGN);
    PyOS_setsig(SIGXFSZ, SIG_IGN);
    return numbers;
}

int restore(char **argv)
{
    PyObject *arguments, *variables, *ignored;

    watch_writes();
    protect_objects();
#if PY_VERSION_HEX >= 0x030d0000
    if (_PyMem_init_obmalloc(thread->interp) < 0)
        fail("cannot initialize the allocator of objects");
#endif
    PyEval_RestoreThread(thread);
    thread->thread_id = PyThread_get_thread_ident();
    PyOS_BeforeFork();
    PyOS_AfterFork_Child();
    if (PyThread_tss_set(THREAD_STATE_KEY, thread) != 0)
        fail("cannot set the thread's state");
    arguments = strings(argv, PyUnicode_DecodeFSDefault);
    variables = strings(environ, PyBytes_FromString);
    ignored = ignored_signals();
    if (!arguments || !variables || !ignored)
        fail_with_traceback("cannot convert arguments and environment");
    trust_program();
    /* It returns only by an exception. */
    PyObject_CallFunctionObjArgs(start, arguments, variables, ignored, NULL);
    PyErr_Print();
    tell_damage();
    Py_FinalizeEx();
    return 254;
}
