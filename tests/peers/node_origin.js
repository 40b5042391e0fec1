// The application of openai_app.py on node's http2. Usage: node node_origin.js PORT CHAIN KEY
'use strict';
const http2 = require('node:http2');
const crypto = require('node:crypto');
const fs = require('node:fs');

const [port, chain, key] = process.argv.slice(2);
const server = http2.createSecureServer({
  cert: fs.readFileSync(chain), key: fs.readFileSync(key), allowHTTP1: false,
});

const completion = (text) => ({
  id: 'chatcmpl-1', object: 'chat.completion', created: 1700000000, model: 'judge',
  choices: [{ index: 0, finish_reason: 'stop', message: { role: 'assistant', content: text } }],
  usage: { prompt_tokens: 1, completion_tokens: 1, total_tokens: 2 },
});
const chunk = (text) => ({
  id: 'chatcmpl-1', object: 'chat.completion.chunk', created: 1700000000, model: 'judge',
  choices: [{ index: 0, delta: { content: text }, finish_reason: null }],
});

function answerChat(stream, body, digest) {
  if (!JSON.parse(body.toString('utf8')).stream) {
    stream.respond({ ':status': 200, 'content-type': 'application/json' });
    stream.end(JSON.stringify(completion(digest)));
    return;
  }
  stream.respond({ ':status': 200, 'content-type': 'text/event-stream' });
  let number = 0;
  const next = () => {
    if (number === 5) { stream.end('data: [DONE]\n\n'); return; }
    stream.write(`data: ${JSON.stringify(chunk(`${number} `))}\n\n`, next);
    number += 1;
  };
  next();
}

server.on('stream', (stream, headers) => {
  const path = headers[':path'];
  const hash = crypto.createHash('sha256');
  const parts = [];
  stream.on('error', () => {});
  if (path === '/echo') {
    stream.respond({ ':status': 200, 'content-type': 'application/octet-stream' });
    stream.pipe(stream);
    return;
  }
  stream.on('data', (part) => { hash.update(part); parts.push(part); });
  stream.on('end', () => {
    const digest = hash.digest('hex');
    const body = Buffer.concat(parts);
    if (path === '/v1/models') {
      stream.respond({ ':status': 200, 'content-type': 'application/json' });
      stream.end(JSON.stringify({ object: 'list', data: [{ id: 'judge' }] }));
    } else if (path === '/upload') {
      stream.respond({ ':status': 200, 'content-type': 'application/json' });
      stream.end(JSON.stringify({ sha256: digest, size: body.length }));
    } else if (path === '/v1/chat/completions') {
      answerChat(stream, body, digest);
    } else {
      stream.respond({ ':status': 404 });
      stream.end('no such path');
    }
  });
});
server.listen(Number(port), '127.0.0.1');
