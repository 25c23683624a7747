#include "names_file.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>

namespace kvtrace {

bool NamesFile::create(const char *path) {
    file_ = open(path, O_WRONLY | O_CREAT | O_EXCL | O_APPEND | O_CLOEXEC, 0600);
    return file_ >= 0;
}

bool NamesFile::line_of(const char *name, uint32_t *line) {
    const auto found = lines_.find(name);
    if (found != lines_.end()) {
        *line = found->second;
        return true;
    }
    std::string text = name;
    for (char &character : text) {
        /* A name is one line, whatever is in it. */
        character = static_cast<unsigned char>(character) < 0x20 ? '?' : character;
    }
    text += '\n';
    if (write(file_, text.data(), text.size()) != static_cast<ssize_t>(text.size())) {
        errno = errno == 0 ? ENOSPC : errno;
        return false;
    }
    *line = static_cast<uint32_t>(lines_.size());
    lines_.emplace(name, *line);
    return true;
}

} // namespace kvtrace
