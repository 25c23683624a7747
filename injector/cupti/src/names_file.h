/* The names of kernels, one a line; a record says which line. */
#ifndef KVTRACE_NAMES_FILE_H
#define KVTRACE_NAMES_FILE_H

#include <cstdint>
#include <string>
#include <unordered_map>

namespace kvtrace {

/* Used by one thread at a time. */
class NamesFile {
  public:
    bool create(const char *path);

    /* The line of a name, written now if it is new. False: it could not be written (errno). */
    bool line_of(const char *name, uint32_t *line);

  private:
    int file_ = -1;
    std::unordered_map<std::string, uint32_t> lines_;
};

} // namespace kvtrace

#endif
