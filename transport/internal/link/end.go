// Package link is what every mesh is made of: one rank's inbox with its pool of buffers, its first failure, and its counters.
package link

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/gradpress/gradpress/transport"
)

// DefaultTimeout is how long a rank waits for a silent peer where the user says nothing.
const DefaultTimeout = 60 * time.Second

// MaxMessage bounds one message, in bytes: a length from a peer is checked against it before anything is allocated.
const MaxMessage = 1 << 30

// End is one rank's end of a mesh. A mesh embeds it and adds Send, Abort and Close.
type End struct {
	net        string // in front of errors: "tcp"
	rank, size int
	timeout    time.Duration
	*Pool
	wake  chan struct{} // holds a token when the inbox may have changed
	timer *time.Timer   // of the one Recv at a time

	mu      sync.Mutex
	from    []inbox
	err     error // the first failure
	stopped bool
	traffic transport.Traffic
}

// inbox is a first-in, first-out queue of what one peer has sent.
type inbox struct {
	msgs  [][]byte
	head  int
	alive int // grows as anything arrives, so that half a long message does not look like silence
	left  bool
}

// NewEnd returns rank's end of a mesh of size ranks, with buffers from p. A timeout of 0 is DefaultTimeout.
func NewEnd(net string, rank, size int, timeout time.Duration, p *Pool) *End {
	if timeout == 0 {
		timeout = DefaultTimeout
	}
	e := &End{net: net, rank: rank, size: size, timeout: timeout, Pool: p, wake: make(chan struct{}, 1), from: make([]inbox, size)}
	e.timer = time.NewTimer(time.Hour)
	e.timer.Stop()
	return e
}

// Rank is this end's place.
func (e *End) Rank() int { return e.rank }

// Size is the number of ranks.
func (e *End) Size() int { return e.size }

// Timeout is how long a silent peer is waited for.
func (e *End) Timeout() time.Duration { return e.timeout }

// Recv returns the next message from rank from.
func (e *End) Recv(ctx context.Context, from int) ([]byte, error) {
	e.mustBePeer("Recv", from)
	waiting, seen := false, 0
	for {
		b, alive, err := e.take(ctx, from)
		if b != nil || err != nil {
			if waiting {
				e.timer.Stop()
			}
			return b, err
		}
		if !waiting {
			waiting, seen = true, alive
			e.timer.Reset(e.timeout)
		}
		select {
		case <-e.wake:
		case <-ctx.Done():
		case <-e.timer.C:
			if alive == seen {
				return nil, e.Fail(e.Blame(from, "recv from rank %d: nothing within %v", from, e.timeout))
			}
			seen = alive
			e.timer.Reset(e.timeout)
		}
	}
}

// take pops the next message from a peer, or returns nil where there is none yet.
func (e *End) take(ctx context.Context, from int) (b []byte, alive int, err error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	q := &e.from[from]
	switch {
	case e.err != nil:
		return nil, 0, e.err
	case ctx.Err() != nil:
		return nil, 0, fmt.Errorf("%s: recv from rank %d: %w", e.net, from, context.Cause(ctx))
	case q.head < len(q.msgs):
		b = q.msgs[q.head]
		q.msgs[q.head] = nil
		if q.head++; q.head == len(q.msgs) {
			q.head, q.msgs = 0, q.msgs[:0]
		}
		e.traffic.RecvMessages++
		e.traffic.RecvBytes += int64(HeaderLen(len(b)) + len(b))
		return b, 0, nil
	case q.left:
		e.err = e.Blame(from, "rank %d has left", from)
		return nil, 0, e.err
	}
	return nil, q.alive, nil
}

// Deliver puts b, which came from Get, into the inbox of rank from.
func (e *End) Deliver(from int, b []byte) {
	e.mu.Lock()
	if e.err == nil {
		q := &e.from[from]
		q.alive++
		if q.head > 0 && len(q.msgs) == cap(q.msgs) { // reuse the room in front
			n := copy(q.msgs, q.msgs[q.head:])
			clear(q.msgs[n:])
			q.head, q.msgs = 0, q.msgs[:n]
		}
		q.msgs = append(q.msgs, b)
	}
	e.mu.Unlock()
	e.poke()
}

// Alive notes that part of a message from rank from has arrived.
func (e *End) Alive(from int) {
	e.mu.Lock()
	e.from[from].alive++
	e.mu.Unlock()
	e.poke()
}

// Left notes that rank from has closed in good order.
func (e *End) Left(from int) {
	e.mu.Lock()
	e.from[from].left = true
	e.mu.Unlock()
	e.poke()
}

func (e *End) poke() {
	select {
	case e.wake <- struct{}{}:
	default:
	}
}

// Sending says whether a message of n bytes may go to rank to: the mesh's failure, the end of ctx, or a peer that has left.
func (e *End) Sending(ctx context.Context, to, n int) error {
	e.mustBePeer("Send", to)
	e.mu.Lock()
	defer e.mu.Unlock()
	switch {
	case e.err != nil:
		return e.err
	case ctx.Err() != nil:
		return fmt.Errorf("%s: send to rank %d: %w", e.net, to, context.Cause(ctx))
	case n > MaxMessage:
		return fmt.Errorf("%s: send to rank %d: a message of %d bytes; at most %d are allowed", e.net, to, n, MaxMessage)
	case e.from[to].left:
		e.err = e.Blame(to, "rank %d has left", to)
		return e.err
	}
	return nil
}

// Sent counts a message of n bytes.
func (e *End) Sent(n int) {
	e.mu.Lock()
	e.traffic.SentMessages++
	e.traffic.SentBytes += int64(HeaderLen(n) + n)
	e.mu.Unlock()
}

// Traffic is what has been moved so far.
func (e *End) Traffic() transport.Traffic {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.traffic
}

// Blame is the failure of a peer that this rank has seen itself.
func (e *End) Blame(rank int, format string, args ...any) error {
	return &transport.PeerError{Rank: rank, Via: -1, Reason: e.net + ": " + fmt.Sprintf(format, args...)}
}

// Root is what the peers are told when this rank aborts because of cause.
func (e *End) Root(cause error) *transport.PeerError {
	if p, ok := errors.AsType[*transport.PeerError](cause); ok {
		reason := p.Reason
		if p.Via == p.Rank {
			reason = p.Error() // it gave up for a reason of its own, which does not name it
		}
		return &transport.PeerError{Rank: p.Rank, Via: e.rank, Reason: reason}
	}
	return &transport.PeerError{Rank: e.rank, Via: e.rank, Reason: cause.Error()}
}

// Fail keeps the first failure and returns it; every call returns it from then on.
func (e *End) Fail(err error) error {
	e.mu.Lock()
	if e.err == nil {
		e.err = err
	}
	err = e.err
	e.mu.Unlock()
	e.poke()
	return err
}

// Err is the first failure, or nil.
func (e *End) Err() error {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.err
}

// Stop ends this rank's use of the mesh, once. With a cause, or after a failure, the others are to be told why: the error. first is
// false where the mesh had been stopped before.
func (e *End) Stop(cause error) (why *transport.PeerError, first bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	defer e.poke()
	if e.stopped {
		return nil, false
	}
	e.stopped = true
	if cause == nil {
		cause = e.err
	}
	if cause == nil {
		e.err = fmt.Errorf("%s: the mesh of rank %d is closed", e.net, e.rank)
		return nil, true
	}
	if e.err == nil {
		e.err = cause
	}
	return e.Root(cause), true
}

func (e *End) mustBePeer(op string, r int) {
	if r < 0 || r >= e.size || r == e.rank {
		panic(fmt.Sprintf("%s: %s between rank %d and rank %d of %d", e.net, op, e.rank, r, e.size))
	}
}
