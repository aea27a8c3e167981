// Package tcp is a mesh of ranks over TCP. It trusts the network: nothing is encrypted, and the token that ranks show each other keeps
// out strays, not attackers.
package tcp

import (
	"fmt"
	"net"
	"os"
	"strconv"
	"time"

	"github.com/gradpress/gradpress/transport/internal/link"
)

const maxMeshes = 64

// Config says who this rank is and where the others are found.
type Config struct {
	Rank, Size int
	// Master is host:port of rank 0, which listens there until every rank has come.
	Master string
	// Meshes is how many independent meshes to make; 0 is one.
	Meshes int
	// Timeout is how long Dial waits for the other ranks, and Recv and Send for a silent peer; 0 is 60 s.
	Timeout time.Duration
	// Listener, if set on rank 0, is used instead of listening on Master. Dial closes it.
	Listener *net.TCPListener
}

func (c *Config) validate() error {
	if c.Meshes == 0 {
		c.Meshes = 1
	}
	if c.Timeout == 0 {
		c.Timeout = link.DefaultTimeout
	}
	switch {
	case c.Size < 1 || c.Size > maxRanks:
		return fmt.Errorf("tcp: world size %d; 1 to %d are allowed", c.Size, maxRanks)
	case c.Rank < 0 || c.Rank >= c.Size:
		return fmt.Errorf("tcp: rank %d; 0 to %d are allowed", c.Rank, c.Size-1)
	case c.Meshes < 1 || c.Meshes > maxMeshes:
		return fmt.Errorf("tcp: %d meshes; 1 to %d are allowed", c.Meshes, maxMeshes)
	case c.Timeout < 0:
		return fmt.Errorf("tcp: timeout %v; it must be positive", c.Timeout)
	}
	if c.Size == 1 || c.Rank == 0 && c.Listener != nil {
		return nil
	}
	if _, port, err := net.SplitHostPort(c.Master); err != nil {
		return fmt.Errorf("tcp: master %q; host:port is needed", c.Master)
	} else if n, err := strconv.Atoi(port); err != nil || n < 1 || n > 65535 {
		return fmt.Errorf("tcp: port %q of master %q; 1 to 65535 are allowed", port, c.Master)
	}
	return nil
}

// FromEnv reads RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT, as launchers set them.
func FromEnv() (Config, error) {
	size, err := intEnv("WORLD_SIZE", 1, maxRanks)
	if err != nil {
		return Config{}, err
	}
	rank, err := intEnv("RANK", 0, size-1)
	if err != nil {
		return Config{}, err
	}
	port, err := intEnv("MASTER_PORT", 1, 65535)
	if err != nil {
		return Config{}, err
	}
	host := os.Getenv("MASTER_ADDR")
	if host == "" {
		return Config{}, fmt.Errorf("tcp: MASTER_ADDR is not set; the name or address of the machine of rank 0 is needed")
	}
	return Config{Rank: rank, Size: size, Master: net.JoinHostPort(host, strconv.Itoa(port))}, nil
}

func intEnv(name string, lo, hi int) (int, error) {
	s, ok := os.LookupEnv(name)
	if !ok {
		return 0, fmt.Errorf("tcp: %s is not set; %d to %d are allowed", name, lo, hi)
	}
	n, err := strconv.Atoi(s)
	if err != nil || n < lo || n > hi {
		return 0, fmt.Errorf("tcp: %s=%q; %d to %d are allowed", name, s, lo, hi)
	}
	return n, nil
}
