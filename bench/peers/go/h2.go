// One HTTP/2 connection of the origin, by hand: net/http's server would cost more than the proxies in front of it.
//
// What makes it cheap: it never decodes a field block, because what it answers does not depend on it (a peer's HPACK
// state is its own business); the answer's fields are constant bytes without the dynamic table. A reader and a
// writer per connection; what is ready in between leaves in one TLS write.
package main

import (
	"bufio"
	"crypto/tls"
	"encoding/binary"
	"io"
	"net"
	"strconv"
	"sync"
	"time"
)

const (
	frameData, frameHeaders, frameReset, frameSettings     = 0, 1, 3, 4
	framePing, frameGoaway, frameWindow, frameContinuation = 6, 7, 8, 9
	flagEndStream, flagAck, flagEndHeaders                 = 1, 1, 4

	streamWindow     = 1 << 20
	connectionWindow = 64 << 20
	frameBytes       = 16384 - 9 // with its header, one TLS record
	writeBytes       = 64 << 10
)

type stream struct {
	id       uint32
	mode     *mode
	unacked  int64  // body bytes not yet given back to its window
	window   int64  // what the peer takes
	left     int64  // content bytes to send
	content  []byte // of events; nil: filler
	ends     bool   // END_STREAM after what is there
	queued   bool
	answered bool
}

type connection struct {
	origin  *theOrigin
	raw     net.Conn
	lock    sync.Mutex
	wake    *sync.Cond
	control []byte
	ready   []*stream
	streams map[uint32]*stream
	window  int64
	initial int64
	last    uint32
	leaving bool // GOAWAY was sent
	closed  bool
}

func serveConnection(o *theOrigin, raw net.Conn) {
	c := &connection{origin: o, raw: raw, streams: map[uint32]*stream{}, window: 65535, initial: 65535}
	c.wake = sync.NewCond(&c.lock)
	settings := make([]byte, 0, 64)
	settings = appendFrame(settings, 12, frameSettings, 0, 0)
	settings = binary.BigEndian.AppendUint32(binary.BigEndian.AppendUint16(settings, 3), o.streams.Load())
	settings = binary.BigEndian.AppendUint32(binary.BigEndian.AppendUint16(settings, 4), streamWindow)
	c.control = appendNumber(settings, frameWindow, 0, connectionWindow-65535)
	o.lock.Lock()
	o.connections[c] = true
	o.lock.Unlock()
	go c.write()
	c.read()
	o.lock.Lock()
	delete(o.connections, c)
	o.lock.Unlock()
	c.lock.Lock()
	c.closed = true
	c.wake.Signal()
	c.lock.Unlock()
	raw.Close()
}

func appendFrame(to []byte, size int, kind, flags byte, id uint32) []byte {
	to = append(to, byte(size>>16), byte(size>>8), byte(size), kind, flags)
	return binary.BigEndian.AppendUint32(to, id)
}

func appendNumber(to []byte, kind byte, id uint32, value uint32) []byte {
	return binary.BigEndian.AppendUint32(appendFrame(to, 4, kind, 0, id), value)
}

func (c *connection) read() {
	reader := bufio.NewReaderSize(c.raw, 128<<10)
	if _, err := reader.Discard(24); err != nil { // the preface
		return
	}
	var header [9]byte
	var unacked int64
	for {
		if _, err := io.ReadFull(reader, header[:]); err != nil {
			return
		}
		size := int(header[0])<<16 | int(header[1])<<8 | int(header[2])
		kind, flags := header[3], header[4]
		id := binary.BigEndian.Uint32(header[5:]) & 0x7fffffff
		var payload []byte
		if kind != frameData && kind != frameHeaders && kind != frameContinuation {
			payload, _ = reader.Peek(size)
		}
		c.lock.Lock()
		switch kind {
		case frameData:
			unacked += int64(size)
			if unacked >= connectionWindow/4 {
				c.control = appendNumber(c.control, frameWindow, 0, uint32(unacked))
				unacked = 0
			}
			if s := c.streams[id]; s != nil {
				s.unacked += int64(size)
				if s.unacked >= streamWindow/2 && flags&flagEndStream == 0 {
					c.control = appendNumber(c.control, frameWindow, id, uint32(s.unacked))
					s.unacked = 0
				}
			}
			c.origin.bytes.Add(int64(size))
		case frameHeaders:
			if c.leaving && id > c.last {
				break // refused by the GOAWAY
			}
			if id > c.last {
				c.last = id
				c.streams[id] = &stream{id: id, mode: c.origin.mode.Load(), window: c.initial}
			}
		case frameReset:
			delete(c.streams, id)
		case frameSettings:
			if flags&flagAck == 0 {
				c.applySettings(payload)
				c.control = appendFrame(c.control, 0, frameSettings, flagAck, 0)
			}
		case framePing:
			if flags&flagAck == 0 {
				c.control = append(appendFrame(c.control, 8, framePing, flagAck, 0), payload...)
			}
		case frameWindow:
			credit := int64(binary.BigEndian.Uint32(payload))
			if s := c.streams[id]; id == 0 {
				c.window += credit
			} else if s != nil {
				s.window += credit
				c.offer(s)
			}
		}
		s := c.streams[id]
		whole := (kind == frameData || kind == frameHeaders) && flags&flagEndStream != 0 && s != nil && !s.answered
		if whole {
			s.answered = true
		}
		c.lock.Unlock()
		if _, err := reader.Discard(size); err != nil {
			return
		}
		if whole {
			c.origin.in(s.mode, func() { c.answer(s) })
		}
		if reader.Buffered() < 9 || size > 8192 {
			c.lock.Lock()
			c.signal()
			c.lock.Unlock()
		}
	}
}

func (c *connection) applySettings(payload []byte) {
	for ; len(payload) >= 6; payload = payload[6:] {
		if binary.BigEndian.Uint16(payload) == 4 {
			initial := int64(binary.BigEndian.Uint32(payload[2:]))
			for _, s := range c.streams {
				s.window += initial - c.initial
				c.offer(s)
			}
			c.initial = initial
		}
	}
}

// answer queues a whole response, or begins a stream of events.
func (c *connection) answer(s *stream) {
	c.lock.Lock()
	defer c.lock.Unlock()
	fields := []byte{0x88} // :status 200
	if s.mode.events > 0 {
		fields = appendField(fields, 31, "text/event-stream")
	} else {
		fields = appendField(fields, 31, "application/json")
		fields = appendField(fields, 28, strconv.FormatInt(s.mode.reply, 10))
	}
	c.control = append(appendFrame(c.control, len(fields), frameHeaders, flagEndHeaders, s.id), fields...)
	if s.mode.events > 0 {
		go ticks(s.mode, func(event []byte, last bool) {
			c.lock.Lock()
			defer c.lock.Unlock()
			s.content = append(s.content, event...)
			s.left += int64(len(event))
			s.ends = last
			c.offer(s)
			c.signal()
		})
		return
	}
	s.left = s.mode.reply
	s.ends = true
	c.offer(s)
	if s.mode.hold || s.mode.delay > 0 || len(s.mode.delays) > 0 { // not from the reader, which signals by itself
		c.signal()
	}
}

// appendField writes a literal with the name of that static index, without indexing (RFC 7541 section 6.2.2).
func appendField(to []byte, index byte, value string) []byte {
	to = append(to, 0x0f, index-15, byte(len(value)))
	return append(to, value...)
}

func (c *connection) offer(s *stream) {
	if !s.queued && (s.left > 0 || s.ends) && s.window > 0 {
		s.queued = true
		c.ready = append(c.ready, s)
	}
}

func (c *connection) isDone() bool { return c.leaving && len(c.streams) == 0 }

func (c *connection) hasOutput() bool {
	return len(c.control) > 0 || (len(c.ready) > 0 && c.window > 0) || c.isDone()
}

func (c *connection) signal() {
	if c.hasOutput() {
		c.wake.Signal()
	}
}

// write sends what is ready, control frames first, then one frame of each stream in turn.
func (c *connection) write() {
	buffer := make([]byte, 0, writeBytes+frameBytes+9)
	c.lock.Lock()
	defer c.lock.Unlock()
	for {
		for !c.hasOutput() && !c.closed {
			c.wake.Wait()
		}
		if c.closed {
			return
		}
		buffer = append(buffer[:0], c.control...)
		c.control = c.control[:0]
		for len(c.ready) > 0 && c.window > 0 && len(buffer) < writeBytes {
			s := c.ready[0]
			c.ready = c.ready[1:]
			s.queued = false
			buffer = c.appendData(buffer, s)
			c.offer(s)
		}
		done := c.isDone()
		c.lock.Unlock()
		_, err := c.raw.Write(buffer)
		if err != nil {
			c.raw.Close()
		} else if done {
			c.leave()
		}
		c.lock.Lock()
		if err != nil || done {
			return
		}
	}
}

// leave closes our half and waits for the peer to close its own: a close with bytes unread would be a reset, which
// could overtake the last answers.
func (c *connection) leave() {
	secure := c.raw.(*tls.Conn)
	secure.CloseWrite()
	secure.NetConn().(*net.TCPConn).CloseWrite()
	time.AfterFunc(5*time.Second, func() { c.raw.Close() })
}

func (c *connection) appendData(to []byte, s *stream) []byte {
	size := min(s.left, s.window, c.window, frameBytes)
	if size < 0 || c.streams[s.id] != s {
		s.left, s.ends = 0, false
		return to
	}
	s.left -= size
	s.window -= size
	c.window -= size
	flags := byte(0)
	if s.left == 0 && s.ends {
		flags = flagEndStream
		s.ends = false
		delete(c.streams, s.id)
	}
	to = appendFrame(to, int(size), frameData, flags, s.id)
	if s.content == nil {
		return append(to, filler[:size]...)
	}
	to = append(to, s.content[:size]...)
	s.content = append(s.content[:0], s.content[size:]...)
	return to
}

// goaway refuses every later stream, lets those that are open finish, and then closes (RFC 9113 section 6.8).
func (c *connection) goaway() {
	c.lock.Lock()
	defer c.lock.Unlock()
	if c.leaving {
		return
	}
	c.leaving = true
	c.control = appendFrame(c.control, 8, frameGoaway, 0, 0)
	c.control = binary.BigEndian.AppendUint64(c.control, uint64(c.last)<<32)
	c.wake.Signal()
}
