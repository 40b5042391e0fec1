/* getaddrinfo() for a preloaded library: names below .flaky.test resolve to 127.0.0.1, or fail while a file of
 * that name lies in the folder that FLAKY_NAMES names. Every other name goes to the system. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <netdb.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

typedef int (*resolve_fn)(const char *, const char *, const struct addrinfo *, struct addrinfo **);

int getaddrinfo(const char *name, const char *service, const struct addrinfo *hints, struct addrinfo **found)
{
    static resolve_fn system_resolve;
    static const char ending[] = ".flaky.test";
    const char *folder = getenv("FLAKY_NAMES");
    char path[4096];

    if (!system_resolve)
        system_resolve = (resolve_fn)dlsym(RTLD_NEXT, "getaddrinfo");
    if (name && folder && strlen(name) > strlen(ending)
        && !strcmp(name + strlen(name) - strlen(ending), ending)) {
        snprintf(path, sizeof path, "%s/%s", folder, name);
        if (!access(path, F_OK))
            return EAI_AGAIN;
        name = "127.0.0.1";
    }
    return system_resolve(name, service, hints, found);
}
