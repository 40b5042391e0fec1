// The clients: HTTP/1.1 over loopback, one goroutine each, a request at a time.
package main

import (
	"bufio"
	"bytes"
	"errors"
	"flag"
	"fmt"
	"io"
	"net"
	"net/http/httputil"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
)

type loader struct {
	address string
	head    []byte
	body    net.Buffers
	events  bool
	pace    time.Duration // from one request of a client to the next; 0: at once
	left    atomic.Int64
	end     time.Time
	lock    sync.Mutex
	took    []time.Duration // each request, or the delay of each event
	errors  map[string]int
	bytes   atomic.Int64
}

func load(args []string) error {
	flags := flag.NewFlagSet("load", flag.ExitOnError)
	address := flags.String("address", "", "host:port of the proxy")
	clients := flags.Int("clients", 1, "connections")
	requests := flags.Int64("requests", 1<<62, "requests in all, at most")
	seconds := flags.Float64("seconds", 3600, "no request begins after this time")
	body := flags.Int64("body", 0, "bytes of each request's body; 0 is a GET")
	rate := flags.Float64("rate", 0, "requests per second in all; 0 is as fast as they are answered")
	events := flags.Bool("events", false, "measure the delay of each event")
	flags.Parse(args)

	l := &loader{address: *address, events: *events, errors: map[string]int{}}
	l.left.Store(*requests)
	l.end = time.Now().Add(time.Duration(*seconds * float64(time.Second)))
	fields := "host: judge.example\r\nuser-agent: bench/1\r\naccept: application/json\r\n" +
		"authorization: Bearer 0123456789abcdef0123456789abcdef\r\n"
	if *body == 0 {
		l.head = []byte("GET /v1/models HTTP/1.1\r\n" + fields + "\r\n")
	} else {
		l.head = []byte("POST /v1/chat/completions HTTP/1.1\r\n" + fields + "content-type: application/json\r\n" +
			"content-length: " + strconv.FormatInt(*body, 10) + "\r\n\r\n")
	}
	for left := *body; left > 0; left -= min(left, int64(len(filler))) {
		l.body = append(l.body, filler[:min(left, int64(len(filler)))])
	}
	if *rate > 0 {
		l.pace = time.Duration(float64(*clients) / *rate * float64(time.Second))
	}
	begun := time.Now()
	var all sync.WaitGroup
	for i := range *clients {
		all.Add(1)
		go func() {
			defer all.Done()
			if l.pace > 0 {
				time.Sleep(l.pace * time.Duration(i) / time.Duration(*clients))
			}
			l.client()
		}()
	}
	all.Wait()
	lasted := time.Since(begun).Seconds()
	var used syscall.Rusage
	syscall.Getrusage(syscall.RUSAGE_SELF, &used)
	slices.Sort(l.took)
	at := func(share float64) int64 {
		if len(l.took) == 0 {
			return 0
		}
		return l.took[min(int(share*float64(len(l.took))), len(l.took)-1)].Microseconds()
	}
	failed := 0
	for _, count := range l.errors {
		failed += count
	}
	say(map[string]any{
		"count": len(l.took), "failed": failed, "errors": l.errors, "seconds": lasted,
		"cpu_seconds": float64(used.Utime.Nano()+used.Stime.Nano()) / 1e9,
		"p50_us":      at(0.5), "p99_us": at(0.99), "bytes": l.bytes.Load(),
	})
	return nil
}

// client sends one request after the other; after a failure on a new connection.
func (l *loader) client() {
	var c net.Conn
	var reader *bufio.Reader
	var took []time.Duration
	defer func() {
		if c != nil {
			c.Close()
		}
		l.lock.Lock()
		l.took = append(l.took, took...)
		l.lock.Unlock()
	}()
	next := time.Now()
	for l.left.Add(-1) >= 0 && time.Now().Before(l.end) {
		if l.pace > 0 {
			time.Sleep(time.Until(next))
			next = next.Add(l.pace)
		}
		begun := time.Now()
		if c == nil {
			dialled, err := net.DialTimeout("tcp", l.address, 20*time.Second)
			if err != nil {
				l.fail(err)
				continue
			}
			c, reader = dialled, bufio.NewReaderSize(dialled, 16<<10)
		}
		again, err := l.exchange(c, reader, &took)
		if err != nil {
			l.fail(err)
		} else if !l.events {
			took = append(took, time.Since(begun))
		}
		if err != nil || !again {
			c.Close()
			c = nil
		}
	}
}

func (l *loader) fail(err error) {
	var network *net.OpError
	text := err.Error()
	if errors.As(err, &network) {
		text = network.Op + ": " + network.Err.Error()
	}
	l.lock.Lock()
	l.errors[text]++
	l.lock.Unlock()
}

func (l *loader) exchange(c net.Conn, reader *bufio.Reader, took *[]time.Duration) (again bool, err error) {
	parts := append(net.Buffers{l.head}, l.body...)
	if _, err := parts.WriteTo(c); err != nil {
		return false, err
	}
	head, err := readHead(reader)
	if err != nil {
		return false, err
	}
	var content io.Reader = io.LimitReader(reader, head.length)
	if head.chunked {
		content = httputil.NewChunkedReader(reader)
	}
	if head.status == 200 && l.events {
		if err := delays(content, took); err != nil {
			return false, err
		}
	} else {
		size, err := io.Copy(io.Discard, content)
		l.bytes.Add(size)
		if err != nil {
			return false, err
		}
		if !head.chunked && size != head.length {
			return false, io.ErrUnexpectedEOF
		}
	}
	if head.chunked {
		if _, err := reader.Discard(2); err != nil {
			return false, err
		}
	}
	if head.status != 200 {
		return !head.closes, fmt.Errorf("status %d", head.status)
	}
	return !head.closes, nil
}

type responseHead struct {
	status  int
	length  int64
	chunked bool
	closes  bool
}

// readHead reads a head, of a request or a response, and what of it matters here.
func readHead(reader *bufio.Reader) (head responseHead, err error) {
	line, err := reader.ReadSlice('\n')
	if err != nil {
		return head, err
	}
	if len(line) >= 12 && bytes.HasPrefix(line, []byte("HTTP/1.")) {
		head.status, _ = strconv.Atoi(string(line[9:12]))
	}
	for {
		line, err = reader.ReadSlice('\n')
		if err != nil {
			return head, err
		}
		line = bytes.TrimRight(line, "\r\n")
		if len(line) == 0 {
			return head, nil
		}
		name, value, _ := bytes.Cut(line, []byte(":"))
		value = bytes.TrimSpace(value)
		switch {
		case bytes.EqualFold(name, []byte("content-length")):
			head.length, _ = strconv.ParseInt(string(value), 10, 64)
		case bytes.EqualFold(name, []byte("transfer-encoding")):
			head.chunked = true
		case bytes.EqualFold(name, []byte("connection")):
			head.closes = bytes.EqualFold(value, []byte("close"))
		}
	}
}

// delays reads events and notes how long ago each was sent.
func delays(content io.Reader, took *[]time.Duration) error {
	lines := bufio.NewScanner(content)
	for lines.Scan() {
		stamp, found := bytes.CutPrefix(lines.Bytes(), []byte("data: "))
		if !found {
			continue
		}
		stamp, _, _ = bytes.Cut(stamp, []byte(" "))
		sent, err := strconv.ParseInt(string(stamp), 10, 64)
		if err != nil {
			return err
		}
		*took = append(*took, time.Since(time.Unix(0, sent)))
	}
	return lines.Err()
}
