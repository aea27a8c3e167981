// Package transport carries whole messages between ranks. It knows nothing of what they mean; inproc and tcp implement it.
package transport

import (
	"context"
	"fmt"
)

// Mesh connects every rank with every other. Messages between a pair arrive whole and in order. Once a Mesh has failed it stays
// failed, and every call returns an error that names the peer at fault. One goroutine sends and one receives at a time.
type Mesh interface {
	Rank() int
	Size() int
	// Send hands b to rank to. b is free for reuse when Send returns. It does not wait for the peer to receive.
	Send(ctx context.Context, to int, b []byte) error
	// Recv returns the next message from rank from, aligned to 8 bytes. The caller owns it, and may give it back with Release to be
	// used again. A ctx that ends does not fail the mesh; a peer that stays silent for the mesh's timeout does.
	Recv(ctx context.Context, from int) ([]byte, error)
	// Pass is Send of a message that Recv returned, and gives it up: it may travel on without a copy.
	Pass(ctx context.Context, to int, b []byte) error
	// Release takes back a message from Recv for reuse; the caller must not touch it afterwards.
	Release(b []byte)
	// Traffic is what this rank has moved so far, headers included.
	Traffic() Traffic
	// Abort fails the mesh on this rank, and tells the others why before it closes. Where cause holds a PeerError the others learn
	// its Rank, else this rank is to blame. Any goroutine may call it.
	Abort(cause error)
	// Close ends it in good order: messages already sent still arrive. A mesh that has failed is aborted instead.
	Close() error
}

// PeerError is a failure of a mesh that is the fault of one rank. errors.As finds it behind the errors of meshes and groups.
type PeerError struct {
	Rank   int    // the rank at fault
	Via    int    // the rank that reported it by Abort, or -1 where this rank saw it
	Reason string // what happened, e.g. "tcp: rank 2: connection lost"
}

func (e *PeerError) Error() string {
	if e.Via < 0 {
		return e.Reason
	}
	return fmt.Sprintf("rank %d gave up: %s", e.Via, e.Reason)
}

// Traffic counts what one rank put on the wire and took off it: messages, and bytes with transport headers (TCP/IP not included).
type Traffic struct {
	SentMessages, SentBytes, RecvMessages, RecvBytes int64
}

// Sub is t - u, field by field: what was moved between two readings.
func (t Traffic) Sub(u Traffic) Traffic {
	return Traffic{t.SentMessages - u.SentMessages, t.SentBytes - u.SentBytes, t.RecvMessages - u.RecvMessages, t.RecvBytes - u.RecvBytes}
}

// Add is t + u, field by field.
func (t Traffic) Add(u Traffic) Traffic {
	return Traffic{t.SentMessages + u.SentMessages, t.SentBytes + u.SentBytes, t.RecvMessages + u.RecvMessages, t.RecvBytes + u.RecvBytes}
}
