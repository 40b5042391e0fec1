// The origin's commands: what it answers is set over a second, plain listener, so that it never has to read a field
// of a request. It counts what reaches it.
package main

import (
	"bufio"
	"crypto/tls"
	"flag"
	"net"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

// mode is what the origin does with a request, once its body is in.
type mode struct {
	reply  int64           // content bytes of the answer
	hold   bool            // answer only after release
	events int             // answer with so many events instead
	every  time.Duration   // one event
	delay  time.Duration   // before the answer begins
	delays []time.Duration // one for each request as they come, in place of delay
}

type theOrigin struct {
	mode     atomic.Pointer[mode]
	dialled  atomic.Int64
	executed atomic.Int64
	bytes    atomic.Int64
	streams  atomic.Uint32 // SETTINGS_MAX_CONCURRENT_STREAMS of connections to come

	lock        sync.Mutex
	connections map[*connection]bool
	held        []func()
	reached     map[int64]time.Time // when so many requests were in
	changed     *sync.Cond
}

func origin(args []string) error {
	flags := flag.NewFlagSet("origin", flag.ExitOnError)
	certificate := flags.String("cert", "", "PEM file")
	key := flags.String("key", "", "PEM file")
	flags.Parse(args)
	pair, err := tls.LoadX509KeyPair(*certificate, *key)
	if err != nil {
		return err
	}
	o := &theOrigin{connections: map[*connection]bool{}}
	o.streams.Store(128)
	o.changed = sync.NewCond(&o.lock)
	o.mode.Store(&mode{reply: 1024})
	secure, err := tls.Listen("tcp", "127.0.0.1:0", &tls.Config{
		Certificates: []tls.Certificate{pair}, NextProtos: []string{"h2"}, MinVersion: tls.VersionTLS12,
		DynamicRecordSizingDisabled: true, // small records would cost the proxies, not the origin
	})
	if err != nil {
		return err
	}
	plain, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	straight, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	say(map[string]any{
		"upstream": secure.Addr().(*net.TCPAddr).Port,
		"control":  plain.Addr().(*net.TCPAddr).Port,
		"straight": straight.Addr().(*net.TCPAddr).Port,
	})
	go http.Serve(plain, o.control())
	go o.serveStraight(straight)
	for {
		accepted, err := secure.Accept()
		if err != nil {
			return err
		}
		o.dialled.Add(1)
		go serveConnection(o, accepted)
	}
}

func (o *theOrigin) control() http.Handler {
	mux := http.NewServeMux()
	number := func(r *http.Request, name string) int64 {
		value, _ := strconv.ParseInt(r.URL.Query().Get(name), 10, 64)
		return value
	}
	mux.HandleFunc("/mode", func(w http.ResponseWriter, r *http.Request) {
		m := &mode{
			reply: number(r, "reply"), hold: number(r, "hold") == 1, events: int(number(r, "events")),
			every: time.Duration(number(r, "every_us")) * time.Microsecond,
			delay: time.Duration(number(r, "delay_us")) * time.Microsecond,
		}
		for _, each := range strings.Fields(r.URL.Query().Get("delays_ms")) {
			delay, _ := strconv.Atoi(each)
			m.delays = append(m.delays, time.Duration(delay)*time.Millisecond)
		}
		o.mode.Store(m)
		o.executed.Store(0)
		o.bytes.Store(0)
	})
	mux.HandleFunc("/streams", func(w http.ResponseWriter, r *http.Request) {
		o.streams.Store(uint32(number(r, "most")))
	})
	mux.HandleFunc("/counts", func(w http.ResponseWriter, r *http.Request) {
		o.lock.Lock()
		open := len(o.connections)
		o.lock.Unlock()
		w.Write([]byte(`{"dialled":` + strconv.FormatInt(o.dialled.Load(), 10) +
			`,"executed":` + strconv.FormatInt(o.executed.Load(), 10) +
			`,"bytes":` + strconv.FormatInt(o.bytes.Load(), 10) +
			`,"open":` + strconv.Itoa(open) + `}`))
	})
	mux.HandleFunc("/wait", func(w http.ResponseWriter, r *http.Request) {
		deadline := time.Now().Add(time.Duration(number(r, "ms")) * time.Millisecond)
		timer := time.AfterFunc(time.Until(deadline), o.changed.Broadcast)
		defer timer.Stop()
		wanted := number(r, "executed")
		o.lock.Lock()
		for o.executed.Load() < wanted && time.Now().Before(deadline) {
			o.changed.Wait()
		}
		o.lock.Unlock()
		w.Write([]byte(`{"executed":` + strconv.FormatInt(o.executed.Load(), 10) +
			`,"at_us":` + strconv.FormatInt(time.Now().UnixMicro(), 10) + `}`))
	})
	mux.HandleFunc("/release", func(w http.ResponseWriter, r *http.Request) {
		o.release()
	})
	mux.HandleFunc("/goaway", func(w http.ResponseWriter, r *http.Request) {
		o.lock.Lock()
		defer o.lock.Unlock()
		for c := range o.connections {
			c.goaway()
		}
	})
	return mux
}

// in is called once a request is whole; answer may be called at once or when it is released.
func (o *theOrigin) in(m *mode, answer func()) {
	count := o.executed.Add(1)
	if m.hold || len(m.delays) > 0 || count%64 == 0 {
		o.lock.Lock()
		if m.hold && o.mode.Load() == m {
			o.held = append(o.held, answer)
			answer = nil
		}
		o.lock.Unlock()
		o.changed.Broadcast()
	}
	delay := m.delay
	if len(m.delays) > 0 {
		delay = m.delays[(count-1)%int64(len(m.delays))]
	}
	if answer != nil && delay > 0 {
		time.AfterFunc(delay, answer)
	} else if answer != nil {
		answer()
	}
}

// release answers all that are held; those that come later are not held any more.
func (o *theOrigin) release() {
	m := *o.mode.Load()
	m.hold = false
	o.lock.Lock()
	o.mode.Store(&m)
	held := o.held
	o.held = nil
	o.lock.Unlock()
	for _, answer := range held {
		answer()
	}
}

// serveStraight answers HTTP/1.1 without TLS, for the same clients without a proxy between.
func (o *theOrigin) serveStraight(listener net.Listener) {
	for {
		accepted, err := listener.Accept()
		if err != nil {
			return
		}
		go o.serveOneStraight(accepted)
	}
}

func (o *theOrigin) serveOneStraight(c net.Conn) {
	defer c.Close()
	reader := bufio.NewReaderSize(c, 64<<10)
	for {
		head, err := readHead(reader)
		if err != nil {
			return
		}
		if _, err := reader.Discard(int(head.length)); err != nil {
			return
		}
		m := o.mode.Load()
		o.executed.Add(1)
		if m.events > 0 {
			c.Write([]byte("HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"))
			ticks(m, func(event []byte, last bool) {
				c.Write(append(append([]byte(strconv.FormatInt(int64(len(event)), 16)+"\r\n"), event...), '\r', '\n'))
				if last {
					c.Write([]byte("0\r\n\r\n"))
				}
			})
			continue
		}
		start := "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: " +
			strconv.FormatInt(m.reply, 10) + "\r\n\r\n"
		parts := net.Buffers{[]byte(start)}
		for left := m.reply; left > 0; left -= min(left, int64(len(filler))) {
			parts = append(parts, filler[:min(left, int64(len(filler)))])
		}
		parts.WriteTo(c)
	}
}
