package launch

import (
	"bytes"
	"io"
	"sync"
)

// lines writes whole lines, each behind a prefix.
type lines struct {
	to     io.Writer
	turn   *sync.Mutex // held while writing to to
	prefix string
	line   []byte // prefix and the line so far, or empty
}

func (l *lines) Write(b []byte) (int, error) {
	for n := 0; n < len(b); {
		if len(l.line) == 0 {
			l.line = append(l.line, l.prefix...)
		}
		part := b[n:min(len(b), n+maxLine+len(l.prefix)-len(l.line))]
		if i := bytes.IndexByte(part, '\n'); i >= 0 {
			part = part[:i]
		}
		l.line = append(l.line, part...)
		n += len(part)
		switch {
		case n < len(b) && b[n] == '\n':
			n++
		case len(l.line) < maxLine+len(l.prefix):
			continue // the rest is to come
		}
		if err := l.emit(); err != nil {
			return n, err
		}
	}
	return len(b), nil
}

func (l *lines) emit() error {
	l.line = append(l.line, '\n')
	l.turn.Lock()
	defer l.turn.Unlock()
	_, err := l.to.Write(l.line)
	l.line = l.line[:0]
	return err
}

// flush writes a last line that has no end.
func (l *lines) flush() {
	if len(l.line) > 0 {
		l.emit()
	}
}

// plain writes as it is told, in turn with others.
type plain struct {
	to   io.Writer
	turn *sync.Mutex
}

func (p plain) Write(b []byte) (int, error) {
	p.turn.Lock()
	defer p.turn.Unlock()
	return p.to.Write(b)
}
