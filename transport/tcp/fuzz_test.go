package tcp

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"errors"
	"io"
	"reflect"
	"testing"

	"github.com/gradpress/gradpress/transport"
	"github.com/gradpress/gradpress/transport/internal/link"
)

func FuzzHello(f *testing.F) {
	good := hello{kind: join, rank: 2, size: 3, mesh: 1, port: 65535, token: token{1, 15: 9}}.append(nil)
	f.Add(good)
	f.Add(good[:20])
	f.Add([]byte("GET / HTTP/1.1\r\nHost: localhost:29500\r\n\r\n"))
	for i := len(magic); i < 26; i++ {
		bad := bytes.Clone(good)
		bad[i] ^= 0xff
		f.Add(bad)
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		h, err := readHello(bytes.NewReader(b))
		if err != nil {
			return
		}
		if h.rank < 0 || h.rank >= h.size || h.size > maxRanks || h.mesh > maxMeshes || !bytes.HasPrefix(b, h.append(nil)) {
			t.Errorf("accepted %x as %+v", b, h)
		}
	})
}

func FuzzReply(f *testing.F) {
	tab := table{token{7}, []addr{{"", 1}, {"10.0.0.2", 65535}, {"fe80::1", 0}}}
	f.Add(encodeReply(false, tab.encode()), 3)
	f.Add(encodeReply(true, []byte("rank 2 is taken")), 3)
	f.Add([]byte{0, 0xff, 0xff, 0xff, 0xff}, 1)
	f.Add([]byte("HTTP/1.1 400 Bad Request\r\n\r\n"), 1)
	f.Fuzz(func(t *testing.T, b []byte, size int) {
		body, err := readReply(bytes.NewReader(b))
		if err != nil || size < 1 || size > maxRanks {
			return
		}
		tab, err := parseTable(body, size)
		if err == nil && (len(tab.addrs) != size || !bytes.Equal(tab.encode(), body)) {
			t.Errorf("%x became %+v", body, tab)
		}
	})
}

func frame(b []byte, control bool) []byte {
	var h [binary.MaxVarintLen64]byte
	return append(h[:link.PutHeader(h[:], len(b), control)], b...)
}

func FuzzFrame(f *testing.F) {
	f.Add(frame(nil, false))
	f.Add(frame(nil, true))
	f.Add(frame([]byte("hello"), false))
	f.Add(append(frame(make([]byte, 200), false), frame(appendCause(nil, &transport.PeerError{Rank: 2, Reason: "lost"}), true)...))
	f.Add([]byte{0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 1})
	f.Add([]byte{0xfe, 0xff, 0xff, 0xff, 0x0f})
	f.Fuzz(func(t *testing.T, b []byte) {
		in := bufio.NewReaderSize(bytes.NewReader(b), 16)
		read := 0
		for {
			get := func(n int) []byte {
				if n > link.MaxMessage {
					t.Fatalf("a buffer of %d bytes", n)
				}
				return make([]byte, min(n, len(b)+1)) // a real one is allocated whole; here it would slow the search down
			}
			body, control, err := readFrame(in, get, func() {})
			if err != nil {
				if !errors.Is(err, errFrame) && !errors.Is(err, io.EOF) && !errors.Is(err, io.ErrUnexpectedEOF) {
					t.Errorf("an error of another kind: %v", err)
				}
				return
			}
			again := frame(body, control)
			if h := link.HeaderLen(len(body)); h != len(again)-len(body) {
				t.Errorf("HeaderLen(%d) = %d, the header has %d bytes", len(body), h, len(again)-len(body))
			}
			if read += len(again); read > len(b) {
				t.Fatalf("%d bytes out of %d", read, len(b))
			}
			if control && len(body) > 0 {
				if c := parseCause(1, 4, body); c.Rank < 0 || c.Rank >= 4 || c.Via != 1 {
					t.Errorf("%x became %+v", body, c)
				}
			}
		}
	})
}

func TestTableRoundTrip(t *testing.T) {
	want := table{token{1, 2}, []addr{{"", 1}, {"10.0.0.2", 65535}}}
	got, err := parseTable(want.encode(), 2)
	if err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("got %+v, %v", got, err)
	}
	for _, size := range []int{1, 3} {
		if _, err := parseTable(want.encode(), size); err == nil {
			t.Errorf("taken for a table of %d", size)
		}
	}
}
