#include "journal.h"

#include <fcntl.h>
#include <unistd.h>

#include <cinttypes>
#include <cstdio>
#include <cstring>

#include "clock.h"

namespace kvtrace {

JournalLine::JournalLine(const char *event) {
    put_text("{\"event\":\"");
    put_text(event);
    put('"');
    add("host_monotonic_ns", host_monotonic_ns());
}

void JournalLine::put(char character) {
    if (length_ < static_cast<int>(sizeof(text_)) - kRoom) {
        text_[length_++] = character;
    }
}

void JournalLine::put_text(const char *text) {
    for (; *text != '\0'; ++text) {
        put(*text);
    }
}

bool JournalLine::put_name(const char *name, int value_length) {
    const int needed = static_cast<int>(std::strlen(name)) + 4 + value_length;
    if (length_ + needed > static_cast<int>(sizeof(text_)) - kRoom) {
        return false;
    }
    put_text(",\"");
    put_text(name);
    put_text("\":");
    return true;
}

JournalLine &JournalLine::add(const char *name, uint64_t value) {
    char digits[24];
    std::snprintf(digits, sizeof(digits), "%" PRIu64, value);
    if (put_name(name, sizeof(digits))) {
        put_text(digits);
    }
    return *this;
}

JournalLine &JournalLine::add(const char *name, bool value) {
    if (put_name(name, 5)) {
        put_text(value ? "true" : "false");
    }
    return *this;
}

JournalLine &JournalLine::add(const char *name, const char *text) {
    /* Enough for the fields that usually follow a long name. */
    constexpr int kLeft = 256;
    if (!put_name(name, kLeft)) {
        return *this;
    }
    put('"');
    for (; *text != '\0' && length_ < static_cast<int>(sizeof(text_)) - kLeft; ++text) {
        const auto byte = static_cast<unsigned char>(*text);
        if (byte == '"' || byte == '\\') {
            put('\\');
        }
        put(byte < 0x20 || byte > 0x7e ? '?' : *text);
    }
    put('"');
    return *this;
}

JournalLine &JournalLine::add_hex(const char *name, const void *handle) {
    char digits[24];
    std::snprintf(digits, sizeof(digits), "%p", handle);
    return add(name, digits);
}

bool Journal::create(const char *path) {
    file_ = open(path, O_WRONLY | O_CREAT | O_EXCL | O_APPEND | O_CLOEXEC, 0600);
    return file_ >= 0;
}

void Journal::write(JournalLine &line) const {
    if (file_ < 0) {
        return;
    }
    line.text_[line.length_++] = '}';
    line.text_[line.length_++] = '\n';
    /* A lost line is not worth the engine's time; the counters do not depend on it. */
    const ssize_t ignored = ::write(file_, line.text_, static_cast<size_t>(line.length_));
    static_cast<void>(ignored);
}

} // namespace kvtrace
