package inproc_test

import (
	"testing"
	"time"

	"github.com/gradpress/gradpress/transport"
	"github.com/gradpress/gradpress/transport/inproc"
	"github.com/gradpress/gradpress/transport/internal/meshtest"
)

func TestMesh(t *testing.T) {
	meshtest.Run(t, func(_ *testing.T, n int, timeout time.Duration) []transport.Mesh {
		return inproc.NewWith(n, inproc.Options{Timeout: timeout})
	})
}

func TestNoAllocation(t *testing.T) {
	ms := inproc.New(2)
	b := make([]byte, 100_000)
	if err := ms[0].Send(t.Context(), 1, b); err != nil { // so that the queue is never empty
		t.Fatal(err)
	}
	round := func() {
		for range 3 {
			if err := ms[0].Send(t.Context(), 1, b); err != nil {
				t.Fatal(err)
			}
		}
		for range 3 {
			c, err := ms[1].Recv(t.Context(), 0)
			if err != nil {
				t.Fatal(err)
			}
			ms[1].Release(c)
		}
	}
	if n := testing.AllocsPerRun(100, round); n != 0 {
		t.Errorf("%v allocations for three messages", n)
	}
}
