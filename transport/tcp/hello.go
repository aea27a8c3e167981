package tcp

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
)

// Every connection opens with a hello from the side that dialled and a reply from the other, big-endian:
//
//	hello  magic[8] version[1] kind[1] order[2] rank[4] size[4] mesh[4] port[2] token[16]
//	reply  status[1] length[4] body
//
// order is 1 in the host's own byte order, in which the numbers inside messages travel.

const (
	magic    = "gradprss"
	version  = 1
	helloLen = 42
	maxRanks = 1 << 14
	maxReply = maxRanks * 64 // of a body
	maxHost  = 45            // the longest IPv6 address in text
)

type kind uint8

const (
	register kind = 1 + iota // to rank 0: mesh is how many meshes there will be, port is where rank listens
	join                     // to another rank: mesh is which mesh the connection is for
)

type token [16]byte

type hello struct {
	kind       kind
	rank, size int
	mesh, port int
	token      token
}

func (h hello) append(b []byte) []byte {
	b = append(b, magic...)
	b = append(b, version, byte(h.kind))
	b = binary.NativeEndian.AppendUint16(b, 1)
	b = binary.BigEndian.AppendUint32(b, uint32(h.rank))
	b = binary.BigEndian.AppendUint32(b, uint32(h.size))
	b = binary.BigEndian.AppendUint32(b, uint32(h.mesh))
	b = binary.BigEndian.AppendUint16(b, uint16(h.port))
	return append(b, h.token[:]...)
}

// errNoPeer is what anything but a rank of this program gets: nothing.
var errNoPeer = errors.New("not a gradpress rank")

// readHello reads and checks a hello, as far as it can be checked without knowing the run.
func readHello(r io.Reader) (hello, error) {
	var b [helloLen]byte
	if _, err := io.ReadFull(r, b[:len(magic)]); err != nil || string(b[:len(magic)]) != magic {
		return hello{}, errNoPeer
	}
	if _, err := io.ReadFull(r, b[len(magic):]); err != nil {
		return hello{}, errNoPeer
	}
	h := hello{kind: kind(b[9]), token: token(b[26:])}
	rank, size, mesh := binary.BigEndian.Uint32(b[12:]), binary.BigEndian.Uint32(b[16:]), binary.BigEndian.Uint32(b[20:])
	switch {
	case b[8] != version:
		return h, fmt.Errorf("protocol version %d; this rank speaks %d", b[8], version)
	case binary.NativeEndian.Uint16(b[10:]) != 1:
		return h, errors.New("the other byte order; all ranks need the same")
	case h.kind != register && h.kind != join:
		return h, fmt.Errorf("a hello of kind %d; 1 or 2 are allowed", h.kind)
	case size < 1 || size > maxRanks:
		return h, fmt.Errorf("world size %d; 1 to %d are allowed", size, maxRanks)
	case rank >= size:
		return h, fmt.Errorf("rank %d; 0 to %d are allowed", rank, size-1)
	case mesh > maxMeshes:
		return h, fmt.Errorf("mesh %d; at most %d are allowed", mesh, maxMeshes)
	}
	h.rank, h.size, h.mesh, h.port = int(rank), int(size), int(mesh), int(binary.BigEndian.Uint16(b[24:]))
	return h, nil
}

func encodeReply(refused bool, body []byte) []byte {
	var b []byte
	status := byte(0)
	if refused {
		status = 1
	}
	b = binary.BigEndian.AppendUint32(append(b, status), uint32(len(body)))
	return append(b, body...)
}

// errRefused is a peer's refusal, in its own words.
type errRefused string

func (e errRefused) Error() string { return string(e) }

func readReply(r io.Reader) ([]byte, error) {
	var b [5]byte
	if _, err := io.ReadFull(r, b[:]); err != nil {
		return nil, err
	}
	n := binary.BigEndian.Uint32(b[1:])
	if b[0] > 1 || n > maxReply {
		return nil, errNoPeer
	}
	body := make([]byte, n)
	if _, err := io.ReadFull(r, body); err != nil {
		return nil, err
	}
	if b[0] == 1 {
		return nil, errRefused(body)
	}
	return body, nil
}

// table is what rank 0 hands out: the run's token and where each rank listens. An empty host means the master's.
type table struct {
	token token
	addrs []addr
}

type addr struct {
	host string
	port int
}

func (t table) encode() []byte {
	b := append([]byte(nil), t.token[:]...)
	for _, a := range t.addrs {
		b = binary.BigEndian.AppendUint16(b, uint16(a.port))
		b = append(append(b, byte(len(a.host))), a.host...)
	}
	return b
}

// parseTable reads the table of a run of size ranks.
func parseTable(b []byte, size int) (table, error) {
	bad := errors.New("malformed table of ranks")
	var t table
	if len(b) < len(t.token) {
		return t, bad
	}
	b = b[copy(t.token[:], b):]
	for range size {
		if len(b) < 3 || int(b[2]) > maxHost || len(b) < 3+int(b[2]) {
			return t, bad
		}
		n := 3 + int(b[2])
		t.addrs = append(t.addrs, addr{string(b[3:n]), int(binary.BigEndian.Uint16(b))})
		b = b[n:]
	}
	if len(b) > 0 {
		return t, bad
	}
	return t, nil
}
