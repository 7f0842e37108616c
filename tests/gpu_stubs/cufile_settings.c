/* What the stand-in for libcufile is told to do: FOREBAY_STUB_CUFILE, as cufile.c describes it, and which calls fail. */
#define _GNU_SOURCE
#include "cufile.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define NAMES_MAX 64
#define FAILURES_MAX 16

struct cufile_settings cufile_settings = {.version = 1150, .batch_max = 128, .delay_us = 100, .stats = true};

static struct {
    char call[48];
    uint64_t first, last;
    int code;
} failures[FAILURES_MAX];
static int failure_count;
static struct {
    const char *name;
    uint64_t made;
} calls[NAMES_MAX];
static pthread_once_t read_once = PTHREAD_ONCE_INIT;

static void refuse(const char *what)
{
    fprintf(stderr, "FOREBAY_STUB_CUFILE: can't make sense of '%s'\n", what);
    abort();
}

static void read_failure(const char *text)
{
    const char *colon = strchr(text, ':');
    if (!colon || colon - text >= 48 || failure_count == FAILURES_MAX)
        refuse(text);
    memcpy(failures[failure_count].call, text, (size_t)(colon - text));
    char *end;
    uint64_t first = strtoull(colon + 1, &end, 10);
    bool on = *end == '+';
    end += on;
    if (*end != ':')
        refuse(text);
    failures[failure_count].first = first;
    failures[failure_count].last = on ? UINT64_MAX : first;
    failures[failure_count++].code = atoi(end + 1);
}

static void read_mode(const char *name)
{
    static const char *const names[] = {"compat", "nvfs", "p2p", "mixed"};
    for (int i = 0; i < 4; i++)
        if (!strcmp(name, names[i])) {
            cufile_settings.mode = (enum way)i;
            return;
        }
    refuse(name);
}

static void read_settings(void)
{
    const char *given = getenv("FOREBAY_STUB_CUFILE");
    char *text = strdup(given ? given : ""), *rest = NULL;
    for (char *one = strtok_r(text, ",", &rest); one; one = strtok_r(NULL, ",", &rest)) {
        char *value = strchr(one, '=');
        if (!value)
            refuse(one);
        *value++ = 0;
        if (!strcmp(one, "mode")) read_mode(value);
        else if (!strcmp(one, "fail")) read_failure(value);
        else if (!strcmp(one, "version")) cufile_settings.version = atoi(value);
        else if (!strcmp(one, "batch_max")) cufile_settings.batch_max = atoi(value);
        else if (!strcmp(one, "batch_hang")) cufile_settings.batch_hang = (unsigned)atoi(value);
        else if (!strcmp(one, "batch_stall")) cufile_settings.batch_stall = (unsigned)atoi(value);
        else if (!strcmp(one, "io_max")) cufile_settings.io_max = strtoull(value, NULL, 10);
        else if (!strcmp(one, "delay_us")) cufile_settings.delay_us = atoll(value);
        else if (!strcmp(one, "stats")) cufile_settings.stats = atoi(value);
        else if (!strcmp(one, "reroute")) cufile_settings.reroute = (unsigned)atoi(value);
        else refuse(one);
    }
    free(text);
}

int cufile_enter(const char *call)
{
    pthread_once(&read_once, read_settings);
    int i = 0, code = 0;
    pthread_mutex_lock(&cufile_lock);
    while (i < NAMES_MAX - 1 && calls[i].name && strcmp(calls[i].name, call))
        i++;
    calls[i].name = call;
    uint64_t nth = ++calls[i].made;
    for (i = 0; i < failure_count && !code; i++)
        if (!strcmp(failures[i].call, call) && nth >= failures[i].first && nth <= failures[i].last)
            code = failures[i].code;
    pthread_mutex_unlock(&cufile_lock);
    return code;
}
