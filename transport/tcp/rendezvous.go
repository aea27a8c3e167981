package tcp

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"net"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/gradpress/gradpress/transport"
)

// helloTime is how long whoever connects may take to say who it is.
const helloTime = 5 * time.Second

// Dial meets the other ranks at the master's address and returns c.Meshes meshes of all of them. Each has its own connections, so that
// small messages on one do not queue behind large ones on another.
//
// Every rank listens and tells rank 0 where; once all have come, rank 0 hands out the table of addresses and a token made for this run.
// Then each rank connects to all lower ones, once for each mesh, and shows the token.
func Dial(ctx context.Context, c Config) ([]transport.Mesh, error) {
	if err := c.validate(); err != nil {
		return nil, err
	}
	l := &lobby{Config: c, seats: make([]net.Conn, c.Size), addrs: make([]addr, c.Size), changed: make(chan struct{}, 1), open: make(chan struct{})}
	for range c.Meshes {
		l.conns = append(l.conns, make([]*net.TCPConn, c.Size))
	}
	if c.Size == 1 && c.Listener != nil {
		c.Listener.Close()
	}
	if c.Size > 1 {
		if err := l.meet(ctx); err != nil {
			l.leave()
			if cause := ctx.Err(); cause != nil && !errors.Is(err, cause) {
				// All ranks may be cancelled at once, and hear of each other's end before they look at their own.
				err = fmt.Errorf("%w: %w", err, cause)
			}
			return nil, err
		}
	}
	ms := make([]transport.Mesh, c.Meshes)
	for i, conns := range l.conns {
		ms[i] = newMesh(c.Rank, conns, c.Timeout)
	}
	return ms, nil
}

// lobby is one rank's view of a rendezvous.
type lobby struct {
	Config
	ln      net.Listener
	changed chan struct{} // holds a token when something below may have changed
	open    chan struct{} // closed once token is known

	mu      sync.Mutex
	closed  bool
	token   token
	seats   []net.Conn // on rank 0: who has registered, waiting for the table
	addrs   []addr
	conns   [][]*net.TCPConn // of each mesh to each rank
	refused string           // the last one turned away, and why
}

func (l *lobby) meet(ctx context.Context) error {
	if err := l.listen(); err != nil {
		return err
	}
	defer l.ln.Close()
	accepting, stop := context.WithCancel(ctx)
	defer stop()
	go l.accept(accepting)

	var t table
	var err error
	if l.Rank == 0 {
		t, err = l.host(ctx)
	} else {
		t, err = l.register(ctx)
	}
	if err != nil {
		return err
	}
	l.mu.Lock()
	l.token = t.token
	l.mu.Unlock()
	close(l.open)

	ctx, cancel := context.WithTimeout(ctx, l.Timeout)
	defer cancel()
	for r := range l.Rank {
		for i := range l.conns {
			conn, err := l.join(ctx, t, r, i)
			if err != nil {
				return err
			}
			l.conns[i][r] = conn
		}
	}
	return l.await(ctx, "connect", func() (missing []int) {
		for r := l.Rank + 1; r < l.Size; r++ {
			for _, conns := range l.conns {
				if conns[r] == nil {
					missing = append(missing, r)
					break
				}
			}
		}
		return missing
	})
}

// leave closes what a failed rendezvous has opened.
func (l *lobby) leave() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.closed = true
	for _, conns := range l.conns {
		for _, c := range conns {
			if c != nil {
				c.Close()
			}
		}
	}
	for _, c := range l.seats {
		if c != nil {
			c.Close()
		}
	}
}

// listen opens rank 0's door at the master's address and everyone else's at any port: on all interfaces, unless the master is on the
// loopback one.
func (l *lobby) listen() error {
	if l.Rank == 0 && l.Listener != nil {
		l.ln = l.Listener
		return nil
	}
	host, port, _ := net.SplitHostPort(l.Master) // validated
	if ip := net.ParseIP(host); host != "localhost" && !ip.IsLoopback() {
		host = ""
	}
	if l.Rank != 0 {
		port = "0"
	}
	at := net.JoinHostPort(host, port)
	var err error
	l.ln, err = net.Listen("tcp", at)
	if errors.Is(err, syscall.EADDRINUSE) {
		return fmt.Errorf("tcp: rank 0 cannot listen at %s, another program does; end it, or give all ranks another MASTER_PORT", l.Master)
	}
	if err != nil {
		return fmt.Errorf("tcp: rank %d cannot listen at %s: %w", l.Rank, at, err)
	}
	return nil
}

func (l *lobby) accept(ctx context.Context) {
	for {
		conn, err := l.ln.Accept()
		switch {
		case errors.Is(err, net.ErrClosed):
			return
		case err != nil: // such as too many open files
			time.Sleep(10 * time.Millisecond)
		default:
			go l.serve(ctx, conn.(*net.TCPConn))
		}
	}
}

// serve answers one who knocks. Only a rank of this program gets an answer.
func (l *lobby) serve(ctx context.Context, conn *net.TCPConn) {
	conn.SetDeadline(time.Now().Add(helloTime))
	h, err := readHello(conn)
	if err == nil && h.kind == join {
		select { // a faster rank may have the table already
		case <-l.open:
		case <-ctx.Done():
		}
	}
	conn.SetDeadline(time.Now().Add(helloTime))
	if err == nil {
		err = l.seat(h, conn)
	}
	if err == nil {
		l.poke()
		return
	}
	if !errors.Is(err, errNoPeer) {
		l.mu.Lock()
		l.refused = fmt.Sprintf("%v: %v", conn.RemoteAddr(), err)
		l.mu.Unlock()
		conn.Write(encodeReply(true, []byte(err.Error())))
	}
	conn.Close()
}

// seat gives conn its place, or says why not. A rank that joins is told under the lock, before anything else can be written.
func (l *lobby) seat(h hello, conn *net.TCPConn) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	switch {
	case l.closed:
		return errNoPeer
	case h.size != l.Size:
		return fmt.Errorf("rank %d has world size %d, rank %d has %d", h.rank, h.size, l.Rank, l.Size)
	case h.kind == register && l.Rank != 0:
		return fmt.Errorf("rank %d is not the master", l.Rank)
	case h.kind == register && h.mesh != l.Meshes:
		return fmt.Errorf("rank %d wants %d meshes, rank 0 wants %d", h.rank, h.mesh, l.Meshes)
	case h.kind == register && (h.rank == 0 || l.seats[h.rank] != nil):
		return fmt.Errorf("rank %d is taken; each process needs its own RANK", h.rank)
	case h.kind == register:
		conn.SetDeadline(time.Time{})
		l.seats[h.rank] = conn
		ip := conn.RemoteAddr().(*net.TCPAddr).IP
		a := addr{port: h.port}
		if !ip.IsLoopback() {
			a.host = ip.String()
		}
		l.addrs[h.rank] = a
		return nil
	case h.token != l.token:
		return errors.New("a token of another run")
	case h.rank <= l.Rank || h.mesh >= l.Meshes || l.conns[h.mesh][h.rank] != nil:
		return fmt.Errorf("rank %d cannot join mesh %d of rank %d again", h.rank, h.mesh, l.Rank)
	}
	if _, err := conn.Write(encodeReply(false, nil)); err != nil {
		return errNoPeer
	}
	conn.SetDeadline(time.Time{})
	l.conns[h.mesh][h.rank] = conn
	return nil
}

func (l *lobby) poke() {
	select {
	case l.changed <- struct{}{}:
	default:
	}
}

// await waits until nobody is missing.
func (l *lobby) await(ctx context.Context, what string, missing func() []int) error {
	for {
		l.mu.Lock()
		who, refused := missing(), l.refused
		l.mu.Unlock()
		if len(who) == 0 {
			return nil
		}
		select {
		case <-l.changed:
		case <-ctx.Done():
			if !errors.Is(ctx.Err(), context.DeadlineExceeded) {
				return fmt.Errorf("tcp: rendezvous: %w", context.Cause(ctx))
			}
			if refused != "" {
				refused = "; turned away: " + refused
			}
			return fmt.Errorf("tcp: %s did not %s within %v%s", ranks(who), what, l.Timeout, refused)
		}
	}
}

// ranks is "rank 3" or "ranks 3, 5".
func ranks(who []int) string {
	s := make([]string, len(who))
	for i, r := range who {
		s[i] = strconv.Itoa(r)
	}
	if len(s) == 1 {
		return "rank " + s[0]
	}
	return "ranks " + strings.Join(s, ", ")
}

// host waits for all ranks to register and hands out the table. Where some are missing it tells the others which.
func (l *lobby) host(ctx context.Context) (table, error) {
	ctx, cancel := context.WithTimeout(ctx, l.Timeout)
	defer cancel()
	err := l.await(ctx, "come", func() (missing []int) {
		for r := 1; r < l.Size; r++ {
			if l.seats[r] == nil {
				missing = append(missing, r)
			}
		}
		return missing
	})
	l.mu.Lock()
	defer l.mu.Unlock()
	t := table{addrs: l.addrs}
	rand.Read(t.token[:])
	reply := encodeReply(false, t.encode())
	if err != nil {
		reply = encodeReply(true, []byte(err.Error()))
	}
	for r, conn := range l.seats {
		if conn == nil {
			continue
		}
		conn.SetDeadline(time.Now().Add(helloTime))
		if _, e := conn.Write(reply); e != nil && err == nil {
			err = fmt.Errorf("tcp: rank %d was lost during the rendezvous: %w", r, e)
		}
		conn.Close()
	}
	return t, err
}

// register tells rank 0 where this rank listens and waits for the table.
func (l *lobby) register(ctx context.Context) (table, error) {
	conn, err := l.reachMaster(ctx)
	if err != nil {
		return table{}, err
	}
	defer conn.Close()
	// Rank 0 may have come later than this rank: it answers within its own timeout, and a moment more.
	ctx, cancel := context.WithTimeout(ctx, l.Timeout+helloTime)
	defer cancel()
	h := hello{kind: register, rank: l.Rank, size: l.Size, mesh: l.Meshes, port: l.ln.Addr().(*net.TCPAddr).Port}
	body, err := ask(ctx, conn, h)
	var t table
	if err == nil {
		t, err = parseTable(body, l.Size)
	}
	if err != nil {
		return t, l.failed(0, l.Master, err)
	}
	return t, nil
}

// reachMaster dials until rank 0 listens.
func (l *lobby) reachMaster(ctx context.Context) (net.Conn, error) {
	ctx, cancel := context.WithTimeout(ctx, l.Timeout)
	defer cancel()
	var d net.Dialer
	var last error
	for {
		conn, err := d.DialContext(ctx, "tcp", l.Master)
		if err == nil && conn.LocalAddr().String() == conn.RemoteAddr().String() {
			// Nobody listens yet, and the kernel chose the very port that was dialled: the connection leads back here.
			conn.Close()
			err = syscall.ECONNREFUSED
		}
		if err == nil {
			return conn, nil
		}
		// The reason, and not that time was up, which the dialer may notice before the context does.
		late, ok := errors.AsType[net.Error](err)
		timeIsUp := ctx.Err() != nil || ok && late.Timeout()
		if last == nil || !timeIsUp {
			last = err
		}
		select {
		case <-time.After(50 * time.Millisecond):
		case <-ctx.Done():
			if !errors.Is(ctx.Err(), context.DeadlineExceeded) {
				last = context.Cause(ctx)
			}
			return nil, fmt.Errorf("tcp: rank %d did not reach rank 0 at %s within %v: %w", l.Rank, l.Master, l.Timeout, last)
		}
	}
}

// join connects mesh i to a lower rank.
func (l *lobby) join(ctx context.Context, t table, rank, i int) (*net.TCPConn, error) {
	at := l.Master
	if rank > 0 {
		a := t.addrs[rank]
		if a.host == "" {
			a.host, _, _ = net.SplitHostPort(l.Master) // validated
		}
		at = net.JoinHostPort(a.host, strconv.Itoa(a.port))
	}
	var d net.Dialer
	conn, err := d.DialContext(ctx, "tcp", at)
	if err != nil {
		return nil, l.failed(rank, at, err)
	}
	if _, err := ask(ctx, conn, hello{kind: join, rank: l.Rank, size: l.Size, mesh: i, token: t.token}); err != nil {
		conn.Close()
		return nil, l.failed(rank, at, err)
	}
	return conn.(*net.TCPConn), nil
}

func (l *lobby) failed(rank int, at string, err error) error {
	if refusal, ok := errors.AsType[errRefused](err); ok {
		return fmt.Errorf("tcp: refused by rank %d at %s: %w", rank, at, refusal)
	}
	return fmt.Errorf("tcp: rank %d at %s does not answer as a rank of this run should: %w", rank, at, err)
}

// ask says hello on conn and returns the reply, or an error when ctx ends.
func ask(ctx context.Context, conn net.Conn, h hello) ([]byte, error) {
	stop := context.AfterFunc(ctx, func() { conn.SetDeadline(time.Unix(1, 0)) })
	_, err := conn.Write(h.append(nil))
	var body []byte
	if err == nil {
		body, err = readReply(conn)
	}
	if !stop() { // the deadline is or will be set: conn is of no further use
		return nil, context.Cause(ctx)
	}
	return body, err
}
