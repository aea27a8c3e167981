// Package inproc is a mesh of ranks inside one process. It counts bytes as package tcp does.
package inproc

import (
	"context"
	"time"

	"github.com/gradpress/gradpress/transport"
	"github.com/gradpress/gradpress/transport/internal/link"
)

// Options are the settings of a mesh.
type Options struct {
	// Timeout is how long Recv waits for a silent peer before the mesh fails; 0 is 60 s.
	Timeout time.Duration
}

// New returns the n ends of a mesh with default options.
func New(n int) []transport.Mesh { return NewWith(n, Options{}) }

// NewWith returns the n ends of a mesh.
func NewWith(n int, o Options) []transport.Mesh {
	all := make([]*mesh, n)
	out := make([]transport.Mesh, n)
	pool := new(link.Pool) // one for all: buffers wander between ranks
	for r := range all {
		all[r] = &mesh{End: link.NewEnd("inproc", r, n, o.Timeout, pool), all: all}
		out[r] = all[r]
	}
	return out
}

type mesh struct {
	*link.End
	all []*mesh
}

func (m *mesh) Send(ctx context.Context, to int, b []byte) error {
	c := m.Get(len(b))
	copy(c, b)
	return m.Pass(ctx, to, c)
}

func (m *mesh) Pass(ctx context.Context, to int, b []byte) error {
	if err := m.Sending(ctx, to, len(b)); err != nil {
		return err
	}
	m.Sent(len(b))
	m.all[to].Deliver(m.Rank(), b)
	return nil
}

func (m *mesh) Abort(cause error) { m.stop(cause) }

func (m *mesh) Close() error {
	m.stop(nil)
	return nil
}

func (m *mesh) stop(cause error) {
	why, first := m.Stop(cause)
	if !first {
		return
	}
	for _, peer := range m.all {
		switch {
		case peer == m:
		case why != nil:
			peer.Fail(why)
		default:
			peer.Left(m.Rank())
		}
	}
}
