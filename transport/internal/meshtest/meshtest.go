// Package meshtest is the suite that every transport.Mesh must pass.
package meshtest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/gradpress/gradpress/transport"
)

// Run runs the suite. start returns the ends of a mesh of n ranks, whose calls wait for timeout.
func Run(t *testing.T, start func(t *testing.T, n int, timeout time.Duration) []transport.Mesh) {
	const long = 20 * time.Second
	t.Run("order", func(t *testing.T) { order(t, start(t, 4, long)) })
	t.Run("flood", func(t *testing.T) { flood(t, start(t, 2, long)) })
	t.Run("traffic", func(t *testing.T) { traffic(t, start(t, 2, long)) })
	t.Run("cancel", func(t *testing.T) { cancelled(t, start(t, 2, long)) })
	t.Run("silence", func(t *testing.T) { silence(t, start(t, 3, 250*time.Millisecond)) })
	t.Run("close", func(t *testing.T) { closes(t, start(t, 3, long)) })
	t.Run("abort", func(t *testing.T) { aborts(t, start(t, 3, long)) })
	t.Run("root cause", func(t *testing.T) { rootCause(t, start(t, 4, long)) })
	t.Run("abort wakes", func(t *testing.T) { abortWakes(t, start(t, 2, long)) })
	t.Run("self", func(t *testing.T) { self(t, start(t, 2, long)) })
}

func closeAll(ms []transport.Mesh) {
	for _, m := range ms {
		m.Close()
	}
}

func text(i, from, to int) []byte {
	rng := rand.New(rand.NewPCG(uint64(i), uint64(from*100+to)))
	n := []int{0, 1, 63, 64, 65, 8191, 8192, 300_000, 3 << 20}[rng.IntN(8+i%2)]
	b := make([]byte, n)
	for j := range b {
		b[j] = byte(i + from*7 + to*13 + j*j)
	}
	return b
}

// order: messages of all sizes between all pairs at once arrive whole and in order, and the sender may reuse its slice.
func order(t *testing.T, ms []transport.Mesh) {
	defer closeAll(ms)
	const count = 30
	ctx, stop := context.WithTimeout(t.Context(), 20*time.Second)
	defer stop()
	var wg sync.WaitGroup
	for _, m := range ms {
		wg.Go(func() { // sends and receives at the same time
			scratch := []byte{}
			for i := range count {
				for to := range ms {
					if to == m.Rank() {
						continue
					}
					scratch = append(scratch[:0], text(i, m.Rank(), to)...)
					if err := m.Send(ctx, to, scratch); err != nil {
						t.Error(err)
						return
					}
					clear(scratch)
				}
			}
		})
		wg.Go(func() {
			for i := range count {
				for from := range ms {
					if from == m.Rank() {
						continue
					}
					b, err := m.Recv(ctx, from)
					if err != nil {
						t.Error(err)
						return
					}
					if !bytes.Equal(b, text(i, from, m.Rank())) {
						t.Errorf("message %d from rank %d to rank %d differs", i, from, m.Rank())
					}
					m.Release(b)
				}
			}
		})
	}
	wg.Wait()
}

// flood: both sides send far more than any socket buffer before they receive.
func flood(t *testing.T, ms []transport.Mesh) {
	defer closeAll(ms)
	const count, size = 40, 1 << 20
	var wg sync.WaitGroup
	for r, m := range ms {
		wg.Go(func() {
			b := make([]byte, size)
			for i := range count {
				b[0], b[size-1] = byte(i), byte(i)
				if err := m.Send(t.Context(), 1-r, b); err != nil {
					t.Error(err)
				}
			}
			for i := range count {
				b, err := m.Recv(t.Context(), 1-r)
				if err != nil || len(b) != size || b[0] != byte(i) || b[size-1] != byte(i) {
					t.Errorf("message %d: %d bytes, %v", i, len(b), err)
					return
				}
			}
		})
	}
	wg.Wait()
}

// traffic: a header is the varint of twice the length.
func traffic(t *testing.T, ms []transport.Mesh) {
	defer closeAll(ms)
	var want int64
	for _, c := range []struct{ n, header int64 }{{0, 1}, {1, 1}, {63, 1}, {64, 2}, {8191, 2}, {8192, 3}, {1 << 20, 4}} {
		if err := ms[0].Send(t.Context(), 1, make([]byte, c.n)); err != nil {
			t.Fatal(err)
		}
		b, err := ms[1].Recv(t.Context(), 0)
		if err != nil {
			t.Fatal(err)
		}
		if err := ms[1].Pass(t.Context(), 0, b); err != nil {
			t.Fatal(err)
		}
		if b, err = ms[0].Recv(t.Context(), 1); err != nil || int64(len(b)) != c.n {
			t.Fatalf("%d bytes came back as %d: %v", c.n, len(b), err)
		}
		want += c.n + c.header
		for _, m := range ms {
			if u := m.Traffic(); u.SentBytes != want || u.RecvBytes != want || u.SentMessages != u.RecvMessages {
				t.Errorf("after %d bytes: %+v, want %d bytes each way", c.n, u, want)
			}
		}
	}
}

// cancelled: a context that ends fails the call and not the mesh.
func cancelled(t *testing.T, ms []transport.Mesh) {
	defer closeAll(ms)
	ctx, stop := context.WithTimeout(t.Context(), 10*time.Millisecond)
	defer stop()
	if _, err := ms[0].Recv(ctx, 1); !errors.Is(err, context.DeadlineExceeded) || !strings.Contains(err.Error(), "rank 1") {
		t.Errorf("Recv: %v", err)
	}
	if err := ms[0].Send(ctx, 1, nil); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("Send: %v", err)
	}
	if err := ms[1].Send(t.Context(), 0, []byte("late")); err != nil {
		t.Fatal(err)
	}
	if b, err := ms[0].Recv(t.Context(), 1); err != nil || string(b) != "late" {
		t.Errorf("after the deadline: %q, %v", b, err)
	}
}

func blames(t *testing.T, what string, err error, rank, via int, contains string) {
	t.Helper()
	var p *transport.PeerError
	if !errors.As(err, &p) || p.Rank != rank || p.Via != via || !strings.Contains(err.Error(), contains) ||
		!strings.Contains(err.Error(), fmt.Sprint("rank ", rank)) {
		t.Errorf("%s: %v (%+v), want rank %d via %d and %q", what, err, p, rank, via, contains)
	}
}

// silence fails the mesh for good.
func silence(t *testing.T, ms []transport.Mesh) {
	defer closeAll(ms)
	_, err := ms[0].Recv(t.Context(), 2)
	blames(t, "Recv", err, 2, -1, "recv from rank 2: nothing within 250ms")
	if e := ms[0].Send(t.Context(), 1, nil); e != err {
		t.Errorf("Send after it: %v", e)
	}
	ms[0].Abort(fmt.Errorf("training: %w", err))
	_, err = ms[1].Recv(t.Context(), 2)
	blames(t, "a third rank", err, 2, 0, "rank 0 gave up")
}

// closes: what was sent before arrives, then the rank has left.
func closes(t *testing.T, ms []transport.Mesh) {
	defer closeAll(ms)
	for i := range 3 {
		if err := ms[2].Send(t.Context(), 0, bytes.Repeat([]byte{byte(i)}, 1<<20)); err != nil {
			t.Fatal(err)
		}
	}
	if err := ms[2].Close(); err != nil {
		t.Fatal(err)
	}
	for i := range 3 {
		b, err := ms[0].Recv(t.Context(), 2)
		if err != nil || len(b) != 1<<20 || b[0] != byte(i) {
			t.Fatalf("message %d after Close: %d bytes, %v", i, len(b), err)
		}
	}
	if err := ms[1].Send(t.Context(), 0, nil); err != nil {
		t.Fatalf("two others after rank 2 has left: %v", err)
	}
	if _, err := ms[0].Recv(t.Context(), 1); err != nil {
		t.Fatalf("two others after rank 2 has left: %v", err)
	}
	_, err := ms[0].Recv(t.Context(), 2)
	blames(t, "Recv", err, 2, -1, "rank 2 has left")
	if err := ms[2].Send(t.Context(), 0, nil); err == nil {
		t.Error("Send works after Close")
	}
	if _, err := ms[2].Recv(t.Context(), 0); err == nil {
		t.Error("Recv works after Close")
	}
	if err := ms[2].Close(); err != nil {
		t.Errorf("second Close: %v", err)
	}
}

func aborts(t *testing.T, ms []transport.Mesh) {
	defer closeAll(ms)
	ms[1].Abort(errors.New("loss is NaN"))
	for _, r := range []int{0, 2} {
		_, err := ms[r].Recv(t.Context(), 1)
		blames(t, "Recv from it", err, 1, 1, "rank 1 gave up: loss is NaN")
		_, err = ms[r].Recv(t.Context(), 2-r)
		blames(t, "Recv from another", err, 1, 1, "rank 1 gave up: loss is NaN")
	}
	if err := ms[1].Send(t.Context(), 0, nil); err == nil || !strings.Contains(err.Error(), "loss is NaN") {
		t.Errorf("Send after Abort: %v", err)
	}
}

// rootCause: an abort because of a peer carries that peer's name on.
func rootCause(t *testing.T, ms []transport.Mesh) {
	defer closeAll(ms)
	ms[1].Abort(fmt.Errorf("all-reduce: %w", &transport.PeerError{Rank: 3, Via: -1, Reason: "rank 3: connection lost"}))
	_, err := ms[0].Recv(t.Context(), 2)
	blames(t, "first hand", err, 3, 1, "rank 1 gave up: rank 3: connection lost")
	// Rank 2 passes on what rank 0 would have told it.
	ms[2].Abort(&transport.PeerError{Rank: 3, Via: 0, Reason: "rank 3: connection lost"})
	_, err = ms[0].Recv(t.Context(), 2)
	blames(t, "the first failure stays", err, 3, 1, "rank 1 gave up: rank 3: connection lost")
}

func abortWakes(t *testing.T, ms []transport.Mesh) {
	defer closeAll(ms)
	time.AfterFunc(10*time.Millisecond, func() { ms[0].Abort(errors.New("interrupted")) })
	if _, err := ms[0].Recv(t.Context(), 1); err == nil || !strings.Contains(err.Error(), "interrupted") {
		t.Errorf("the aborting rank: %v", err)
	}
}

func self(t *testing.T, ms []transport.Mesh) {
	defer closeAll(ms)
	for _, r := range []int{-1, 0, 2} {
		func() {
			defer func() {
				if recover() == nil {
					t.Errorf("rank 0 of 2 sent to rank %d", r)
				}
			}()
			ms[0].Send(t.Context(), r, nil)
		}()
	}
}
