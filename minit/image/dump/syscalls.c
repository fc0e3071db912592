/*
 * The module _syscalls: system calls by their numbers, without ctypes between.
 *
 * minit/linux/syscalls.py knows the numbers and what the calls take, and does the same by ctypes in another interpreter.
 */
#include "dump.h"
#include <errno.h>
#include <linux/sched.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#define ARGUMENTS_MAX 6

/* call(path, number, *arguments); an error names the path, unless that is None or empty. A number is itself, None is NULL, anything else the address of its bytes. */
static PyObject *call(PyObject *module, PyObject *const *arguments, Py_ssize_t count)
{
    long words[1 + ARGUMENTS_MAX] = {0}, result = -1;
    Py_buffer buffers[1 + ARGUMENTS_MAX];
    int used = 0, error;

    (void)module;
    if (count < 2 || count > 2 + ARGUMENTS_MAX)
        return PyErr_Format(PyExc_TypeError, "call takes a path, a number and up to %d arguments", ARGUMENTS_MAX);
    for (Py_ssize_t i = 1; i < count && !PyErr_Occurred(); i++) {
        if (PyLong_Check(arguments[i]))
            words[i - 1] = (long)PyLong_AsUnsignedLongMask(arguments[i]);
        else if (arguments[i] != Py_None && PyObject_GetBuffer(arguments[i], &buffers[used], PyBUF_SIMPLE) == 0)
            words[i - 1] = (long)buffers[used++].buf;
    }
    if (!PyErr_Occurred())
        result = syscall(words[0], words[1], words[2], words[3], words[4], words[5], words[6]);
    error = errno;
    while (used)
        PyBuffer_Release(&buffers[--used]);
    if (PyErr_Occurred())
        return NULL;
    errno = error;
    if (result < 0)
        return PyObject_IsTrue(arguments[0]) ? PyErr_SetFromErrnoWithFilenameObject(PyExc_OSError, arguments[0])
                                             : PyErr_SetFromErrno(PyExc_OSError);
    return PyLong_FromLong(result);
}

/* clone3(arguments): a fork, with the interpreter's hooks; returns the child's number, 0 in the child. */
static PyObject *clone3(PyObject *module, PyObject *argument)
{
    Py_buffer buffer;
    long pid;
    int error;

    (void)module;
    if (PyObject_GetBuffer(argument, &buffer, PyBUF_WRITABLE) < 0)
        return NULL;
    PyOS_BeforeFork();
    pid = syscall(SYS_clone3, buffer.buf, buffer.len);
    error = errno;
    if (pid == 0)
        PyOS_AfterFork_Child();
    else
        PyOS_AfterFork_Parent();
    PyBuffer_Release(&buffer);
    errno = error;
    return pid < 0 ? PyErr_SetFromErrno(PyExc_OSError) : PyLong_FromLong(pid);
}

/* address(buffer): where the bytes are. */
static PyObject *address(PyObject *module, PyObject *argument)
{
    Py_buffer buffer;
    PyObject *result;

    (void)module;
    if (PyObject_GetBuffer(argument, &buffer, PyBUF_WRITABLE) < 0)
        return NULL;
    result = PyLong_FromVoidPtr(buffer.buf);
    PyBuffer_Release(&buffer);
    return result;
}

/* take_ends(ends): reaps dead children until nobody is dead or there is no room, and adds the number and the status of each. */
static PyObject *take_ends(PyObject *module, PyObject *argument)
{
    Py_buffer buffer;
    pid_t pid = 1;
    int *ends, room;

    (void)module;
    if (PyObject_GetBuffer(argument, &buffer, PyBUF_WRITABLE) < 0)
        return NULL;
    ends = buffer.buf;
    room = (int)(buffer.len / (Py_ssize_t)sizeof *ends - 1) / 2;
    while (ends[0] < room && (pid = waitpid(-1, &ends[2 * ends[0] + 2], WNOHANG)) > 0) {
        ends[2 * ends[0] + 1] = pid;
        ends[0]++;
    }
    PyBuffer_Release(&buffer);
    if (pid < 0 && errno != ECHILD)
        return PyErr_SetFromErrno(PyExc_OSError);
    Py_RETURN_NONE;
}

/* wait_for_kill(): gives back all memory but the code and the end of the stack, and waits for a signal that ends the process. */
__attribute__((noreturn)) static PyObject *wait_for_kill(PyObject *module, PyObject *nothing)
{
    extern char etext[];
    unsigned long start = ((unsigned long)etext + PAGE - 1) & -PAGE;
    unsigned long end = ((unsigned long)__builtin_frame_address(0) & -PAGE) - PAGE;

    (void)module;
    (void)nothing;
    /* What the process has written is as in the file afterwards, or zero: nothing may return, or look at a variable. */
    syscall(SYS_madvise, start, end - start, MADV_DONTNEED);
    for (;;)
        syscall(SYS_ppoll, NULL, 0, NULL, NULL, 0);
}

/* forget_way_back(): nothing leads back to the program before any more. */
static PyObject *forget(PyObject *module, PyObject *nothing)
{
    (void)module;
    (void)nothing;
    forget_way_back();
    Py_RETURN_NONE;
}

static SAVED PyMethodDef methods[] = {
    {"address", address, METH_O, NULL},
    {"call", (PyCFunction)(void (*)(void))call, METH_FASTCALL, NULL},
    {"clone3", clone3, METH_O, NULL},
    {"forget_way_back", forget, METH_NOARGS, NULL},
    {"take_ends", take_ends, METH_O, NULL},
    {"wait_for_kill", wait_for_kill, METH_NOARGS, NULL},
    {NULL, NULL, 0, NULL},
};
static SAVED struct PyModuleDef definition = {PyModuleDef_HEAD_INIT, "_syscalls", NULL, -1, methods, NULL, NULL, NULL, NULL};

PyObject *PyInit__syscalls(void)
{
    return PyModule_Create(&definition);
}
